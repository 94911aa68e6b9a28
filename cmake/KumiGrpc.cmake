# SPDX-License-Identifier: Apache-2.0
# The parameter server over gRPC: src/ps/rpc, src/ps/serve and the program kumi-ps (src/cli/ps). Nothing else links gRPC.
set(KUMI_GRPC AUTO CACHE STRING "the parameter server over gRPC (kumi ps), with libgrpc: AUTO, ON or OFF")
set_property(CACHE KUMI_GRPC PROPERTY STRINGS AUTO ON OFF)
set(KUMI_GRPC_LIBS "")

# pkg_check_modules(grpc) would ask pkg-config some twenty times, each of which reads a hundred files of Abseil: 15 s.
# Its static libraries, which it would find, a program in C does not need.
function(kumi_find_grpc)
    foreach(query --modversion --variable=libdir)
        execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} ${query} grpc OUTPUT_VARIABLE answer ERROR_QUIET
            OUTPUT_STRIP_TRAILING_WHITESPACE)
        list(APPEND answers "${answer}")
    endforeach()
    list(POP_FRONT answers version folder)
    if(version VERSION_GREATER_EQUAL 26) # the number of its core: 29 is gRPC 1.51
        find_library(KUMI_GRPC_LIB grpc HINTS ${folder})
        find_library(KUMI_GPR_LIB gpr HINTS ${folder})
        mark_as_advanced(KUMI_GRPC_LIB KUMI_GPR_LIB)
        if(KUMI_GRPC_LIB AND KUMI_GPR_LIB)
            message(STATUS "Found grpc, version ${version}")
            set(KUMI_GRPC_LIBS ${KUMI_GRPC_LIB} ${KUMI_GPR_LIB} PARENT_SCOPE)
            return()
        endif()
    endif()
    if(NOT KUMI_GRPC STREQUAL AUTO)
        message(FATAL_ERROR "KUMI_GRPC=${KUMI_GRPC} needs gRPC with a core of version 26 or later; pkg-config knows "
            "\"${version}\"")
    endif()
    message(STATUS "No package 'grpc' found")
endfunction()
if(KUMI_GRPC)
    kumi_find_grpc()
endif()

function(kumi_ps_command)
    if(NOT KUMI_GRPC_LIBS)
        return()
    endif()
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/ps/*.c)
    if(NOT sources)
        return()
    endif()
    add_executable(kumi-ps ${sources} ${PROJECT_SOURCE_DIR}/src/cli/cli.c ${PROJECT_SOURCE_DIR}/src/cli/terminal.c)
    target_link_libraries(kumi-ps PRIVATE ku_ps ku_app)
    target_compile_definitions(kumi-ps PRIVATE KUMI_VERSION="${PROJECT_VERSION}")
    if(TARGET kumi)
        add_dependencies(kumi kumi-ps) # `kumi ps` executes it
    endif()
    install(TARGETS kumi-ps RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()
