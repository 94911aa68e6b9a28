# SPDX-License-Identifier: Apache-2.0
# Compilers' flags, external libraries and options.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

set(KUMI_SANITIZE "" CACHE STRING "sanitizers, as in -fsanitize=: address,undefined or thread")
option(KUMI_WERROR "warnings are errors" ON)
option(KUMI_FUZZ "build the libFuzzer targets (clang)" OFF)

add_library(kumi_flags INTERFACE)
target_compile_definitions(kumi_flags INTERFACE _GNU_SOURCE _FILE_OFFSET_BITS=64)
target_include_directories(kumi_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(kumi_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wcast-qual -Wwrite-strings -Wundef
    -Wformat=2 -Wimplicit-fallthrough -Wdouble-promotion -ffp-contract=off -fno-omit-frame-pointer
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes -Wvla>)
# The ABI of vectors is of no concern: functions that take some are inlined.
add_compile_options($<$<COMPILE_LANGUAGE:C>:-Wno-psabi>)
if(KUMI_WERROR)
    target_compile_options(kumi_flags INTERFACE -Werror)
endif()
if(KUMI_SANITIZE)
    target_compile_options(kumi_flags INTERFACE -fsanitize=${KUMI_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(kumi_flags INTERFACE -fsanitize=${KUMI_SANITIZE})
    if(CMAKE_C_COMPILER_ID STREQUAL GNU) # whose flow warnings see ghosts in instrumented code
        target_compile_options(kumi_flags INTERFACE -Wno-maybe-uninitialized -Wno-format-truncation
            -Wno-stringop-overflow)
    elseif(KUMI_SANITIZE MATCHES address) # as gcc says it
        target_compile_definitions(kumi_flags INTERFACE __SANITIZE_ADDRESS__=1)
    elseif(KUMI_SANITIZE MATCHES thread)
        target_compile_definitions(kumi_flags INTERFACE __SANITIZE_THREAD__=1)
    endif()
endif()

if(KUMI_FUZZ) # coverage of all modules for libFuzzer (clang, with KUMI_SANITIZE)
    target_compile_options(kumi_flags INTERFACE -fsanitize=fuzzer-no-link)
    target_link_options(kumi_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(PkgConfig REQUIRED)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson>=2.13)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash>=0.8)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40) # \p{White_Space}
pkg_check_modules(cmocka IMPORTED_TARGET cmocka)

# Optional parts: AUTO takes what is there, ON fails without it.
set(KUMI_CAIRO AUTO CACHE STRING "pictures (kumi plan --picture), with cairo: AUTO, ON or OFF")
set_property(CACHE KUMI_CAIRO PROPERTY STRINGS AUTO ON OFF)
set(KUMI_CAIRO_LIB "")
if(KUMI_CAIRO STREQUAL AUTO)
    pkg_check_modules(cairo IMPORTED_TARGET cairo>=1.16)
elseif(KUMI_CAIRO)
    pkg_check_modules(cairo REQUIRED IMPORTED_TARGET cairo>=1.16)
endif()
if(KUMI_CAIRO AND cairo_FOUND)
    set(KUMI_CAIRO_LIB PkgConfig::cairo)
    set(KUMI_LIBS_CAIRO " -lcairo") # for kumi.pc
endif()

set(KUMI_URING AUTO CACHE STRING "memory.offload to files by io_uring, with liburing: AUTO, ON or OFF (threads)")
set_property(CACHE KUMI_URING PROPERTY STRINGS AUTO ON OFF)
set(KUMI_URING_LIB "")
if(KUMI_URING STREQUAL AUTO)
    pkg_check_modules(uring IMPORTED_TARGET liburing)
elseif(KUMI_URING)
    pkg_check_modules(uring REQUIRED IMPORTED_TARGET liburing)
endif()
if(KUMI_URING AND uring_FOUND)
    set(KUMI_URING_LIB PkgConfig::uring)
    set(KUMI_LIBS_URING " -luring") # for kumi.pc
endif()

# Images: each library by its own switch, as above.
foreach(part JPEG PNG)
    string(TOLOWER ${part} lower)
    set(KUMI_${part} AUTO CACHE STRING "${part} images in data, with lib${lower}: AUTO, ON or OFF")
    set_property(CACHE KUMI_${part} PROPERTY STRINGS AUTO ON OFF)
    if(KUMI_${part} STREQUAL AUTO)
        pkg_check_modules(${lower} IMPORTED_TARGET lib${lower})
    elseif(KUMI_${part})
        pkg_check_modules(${lower} REQUIRED IMPORTED_TARGET lib${lower})
    endif()
    if(KUMI_${part} AND ${lower}_FOUND)
        list(APPEND KUMI_IMAGE_LIBS PkgConfig::${lower})
        list(APPEND KUMI_IMAGE_DEFINITIONS KUMI_${part})
        string(APPEND KUMI_LIBS_IMAGE " -l${lower}") # for kumi.pc
    endif()
endforeach()
