# SPDX-License-Identifier: Apache-2.0
# The plug-ins of the engine `mpi`: src/comm/mpi/table_plugin.c, compiled once per make of MPI that is installed.
set(KUMI_MPI AUTO CACHE STRING "jobs on several hosts over MPI, with Open MPI's or MPICH's mpicc: AUTO, ON (at least one) or OFF")
set_property(CACHE KUMI_MPI PROPERTY STRINGS AUTO ON OFF)

# Flags of a make's compiler wrapper, in <make>_CFLAGS and <make>_LIBS; <make>_FOUND if a program links with them.
function(kumi_mpi_find make macro)
    set(${make}_FOUND FALSE PARENT_SCOPE)
    foreach(name mpicc.${make} mpicc)
        find_program(KUMI_MPICC_${name} ${name})
        mark_as_advanced(KUMI_MPICC_${name})
        set(mpicc ${KUMI_MPICC_${name}})
        if(NOT mpicc)
            continue()
        endif()
        foreach(part compile link) # Open MPI says the flags, MPICH the whole command
            execute_process(COMMAND ${mpicc} --showme:${part} OUTPUT_VARIABLE ${part} ERROR_QUIET RESULT_VARIABLE failed
                OUTPUT_STRIP_TRAILING_WHITESPACE)
            if(failed)
                execute_process(COMMAND ${mpicc} -${part}-info OUTPUT_VARIABLE ${part} ERROR_QUIET RESULT_VARIABLE failed
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
            endif()
            if(failed)
                set(${part} "")
            endif()
            separate_arguments(${part} UNIX_COMMAND "${${part}}")
        endforeach()
        list(FILTER compile INCLUDE REGEX "^-[ID]")
        list(FILTER link INCLUDE REGEX "^(-L|-l|-Wl,-rpath)")
        set(program ${PROJECT_BINARY_DIR}/CMakeFiles/kumi_mpi_${make}.c)
        file(WRITE ${program}.new "#include <mpi.h>\n#ifndef ${macro}\n#error another make\n#endif\nint main(void) { return MPI_Init(0, 0); }\n")
        file(COPY_FILE ${program}.new ${program} ONLY_IF_DIFFERENT)
        try_compile(works ${PROJECT_BINARY_DIR}/CMakeFiles/kumi_mpi_${make} ${program}
            COMPILE_DEFINITIONS ${compile} LINK_LIBRARIES ${link} NO_CACHE)
        if(works)
            set(${make}_FOUND TRUE PARENT_SCOPE)
            set(${make}_CFLAGS "${compile}" PARENT_SCOPE)
            set(${make}_LIBS "${link}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
endfunction()

# A sanitizer's program cannot load a plug-in without the sanitizer's library, and MPI's libraries have races and leaks
# of their own. The engine above the plug-ins is tested there with a table of the test's.
# KUMI_MPI_TARGETS: the plug-ins, which the command depends on, as it loads them.
function(kumi_mpi)
    set(made)
    if(KUMI_SANITIZE AND KUMI_MPI AND NOT KUMI_MPI STREQUAL AUTO)
        message(FATAL_ERROR "KUMI_MPI=${KUMI_MPI}: no plug-in is built with KUMI_SANITIZE; give AUTO or OFF")
    endif()
    if(KUMI_MPI AND NOT KUMI_SANITIZE)
        kumi_mpi_find(openmpi OPEN_MPI)
        kumi_mpi_find(mpich MPICH_VERSION)
        foreach(make openmpi mpich)
            if(NOT ${make}_FOUND)
                continue()
            endif()
            set(target kumi_mpi_${make})
            add_library(${target} MODULE ${PROJECT_SOURCE_DIR}/src/comm/mpi/table_plugin.c)
            set_target_properties(${target} PROPERTIES OUTPUT_NAME kumi-mpi-${make})
            target_compile_definitions(${target} PRIVATE KU_MPI_MAKE="${make}")
            foreach(flag ${${make}_CFLAGS}) # as a system's header: its warnings are not ours
                string(REGEX REPLACE "^-I" "-isystem" flag "${flag}")
                target_compile_options(${target} PRIVATE ${flag})
            endforeach()
            target_link_libraries(${target} PRIVATE kumi_flags ${${make}_LIBS})
            install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/kumi)
            list(APPEND made ${target})
        endforeach()
    endif()
    if(KUMI_MPI AND NOT KUMI_MPI STREQUAL AUTO AND NOT made)
        message(FATAL_ERROR "KUMI_MPI=${KUMI_MPI}: neither Open MPI's nor MPICH's mpicc compiles a program (tried mpicc.openmpi, "
            "mpicc.mpich, mpicc); install libopenmpi-dev or libmpich-dev")
    endif()
    set(KUMI_MPI_TARGETS ${made} PARENT_SCOPE)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/comm/mpi/load_library.c PROPERTIES COMPILE_DEFINITIONS
        "KUMI_PLUGIN_LIB=\"${CMAKE_INSTALL_LIBDIR}\";KUMI_PLUGIN_FOLDER=\"${CMAKE_INSTALL_FULL_LIBDIR}/kumi\"")
endfunction()
