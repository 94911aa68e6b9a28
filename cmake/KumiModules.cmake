# SPDX-License-Identifier: Apache-2.0
# Modules, libraries, command, examples and benchmarks.
set(KUMI_MODULES "" CACHE INTERNAL "")

# One folder of src/ as a static library. Files named *_avx2.c, *_avx512.c and *_avx512bf16.c hold kernels that run
# only after a look at the CPU; they alone are compiled for more than the baseline, and may contract a*b+c.
function(kumi_module name)
    cmake_parse_arguments(M "" "FLOOR" "USES;LIBS" ${ARGN})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.c)
    list(FILTER sources EXCLUDE REGEX "_plugin\\.c$") # shared objects of their own, loaded at run time
    if(NOT KUMI_GRPC_LIBS)
        list(FILTER sources EXCLUDE REGEX "/src/ps/(rpc|serve|remote)/")
    endif()
    if(NOT sources)
        return()
    endif()
    add_library(ku_${name} STATIC ${sources})
    target_link_libraries(ku_${name} PUBLIC kumi_flags ${M_LIBS})
    foreach(used ${M_USES})
        if(TARGET ku_${used})
            target_link_libraries(ku_${name} PUBLIC ku_${used})
        endif()
    endforeach()
    set(quick) # gcc would spend half of the time of the two largest files there, and the kernels are no faster
    if(CMAKE_C_COMPILER_ID STREQUAL GNU)
        set(quick ";-fno-gcse;-fno-gcse-after-reload")
    endif()
    set(moves) # vectors of 64 bytes live in memory there; gcc would copy them by 16
    if(CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
        set(moves ";-mmove-max=256;-mstore-max=256")
    endif()
    foreach(file ${sources})
        if(file MATCHES "_avx2\\.c$")
            set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-ffp-contract=fast${quick}${moves}")
            if(KUMI_SANITIZE AND file MATCHES "/isa_avx2\\.c$") # two minutes of compilation; the other instances of
                set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all) # the same body have it
            endif()
        elseif(file MATCHES "/isa_base\\.c$")
            set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "-O1${quick}") # for CPUs of before 2013
        elseif(file MATCHES "_avx512\\.c$")
            set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
                "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512;-ffp-contract=fast")
        elseif(file MATCHES "_avx512bf16\\.c$")
            set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
                "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mprefer-vector-width=512;-ffp-contract=fast")
        elseif(file MATCHES "_amx\\.c$")
            set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
                "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mamx-tile;-mamx-bf16;-mprefer-vector-width=512;-ffp-contract=fast")
        endif()
    endforeach()
    list(APPEND KUMI_MODULES ${name})
    set(KUMI_MODULES "${KUMI_MODULES}" CACHE INTERNAL "")
endfunction()

# A subfolder of a module, with the siblings that it may include. The tidy test reads these rows.
function(kumi_folder name)
    if(NOT IS_DIRECTORY ${PROJECT_SOURCE_DIR}/src/${name})
        message(FATAL_ERROR "kumi_folder(${name}): src/${name} does not exist")
    endif()
endfunction()

# libkumi.a and libkumi.so from all modules; only kumi_* leaves the shared one.
function(kumi_libraries)
    set(objects)
    set(modules)
    foreach(name ${KUMI_MODULES})
        list(APPEND objects $<TARGET_OBJECTS:ku_${name}>)
        list(APPEND modules ku_${name})
    endforeach()
    set(KUMI_MODULE_TARGETS "${modules}" CACHE INTERNAL "")
    set(script ${PROJECT_SOURCE_DIR}/cmake/kumi.map)
    add_library(kumi_static STATIC ${objects})
    set_target_properties(kumi_static PROPERTIES OUTPUT_NAME kumi)
    add_library(kumi_shared SHARED ${objects})
    set_target_properties(kumi_shared PROPERTIES OUTPUT_NAME kumi VERSION ${PROJECT_VERSION} SOVERSION 0
        LINK_DEPENDS ${script})
    target_link_options(kumi_shared PRIVATE -Wl,--version-script=${script})
    if(NOT KUMI_SANITIZE) # whose functions come with the program
        target_link_options(kumi_shared PRIVATE -Wl,-z,defs)
    endif()
    foreach(lib kumi_static kumi_shared)
        target_link_libraries(${lib} PRIVATE kumi_flags PUBLIC PkgConfig::jansson PkgConfig::xxhash OpenSSL::Crypto
            Threads::Threads PkgConfig::hwloc PkgConfig::pcre2 ${KUMI_CAIRO_LIB} ${KUMI_URING_LIB} ${KUMI_IMAGE_LIBS} m)
        target_include_directories(${lib} INTERFACE ${PROJECT_SOURCE_DIR}/include)
    endforeach()
endfunction()

function(kumi_command)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.c)
    add_executable(kumi ${sources})
    target_link_libraries(kumi PRIVATE kumi_flags kumi_static)
    target_compile_definitions(kumi PRIVATE KUMI_VERSION="${PROJECT_VERSION}" KUMI_BIN_FOLDER="${CMAKE_INSTALL_FULL_BINDIR}")
    if(KUMI_MPI_TARGETS)
        add_dependencies(kumi ${KUMI_MPI_TARGETS}) # loaded at run time, installed with it
    endif()
endfunction()

# Complete programs against the public headers alone.
function(kumi_examples)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
    foreach(file ${sources})
        get_filename_component(name ${file} NAME_WE)
        add_executable(example_${name} ${file})
        set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY examples)
        target_compile_options(example_${name} PRIVATE -Wall -Wextra -Wpedantic -Werror)
        target_link_libraries(example_${name} PRIVATE kumi_shared)
        if(KUMI_SANITIZE)
            target_link_options(example_${name} PRIVATE -fsanitize=${KUMI_SANITIZE})
        endif()
    endforeach()
endfunction()

# Measurements of modules from inside, which the command has no words for.
function(kumi_benchmarks)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*_bench.c)
    foreach(file ${sources})
        get_filename_component(name ${file} NAME_WE)
        add_executable(${name} ${file})
        set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY bench)
        target_link_libraries(${name} PRIVATE kumi_flags kumi_static)
    endforeach()
endfunction()
