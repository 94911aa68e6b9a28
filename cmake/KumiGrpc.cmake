# SPDX-License-Identifier: Apache-2.0
# The parameter server over gRPC: src/ps/rpc, src/ps/serve and the program kumi-ps (src/cli/ps). Nothing else links gRPC.
set(KUMI_GRPC AUTO CACHE STRING "the parameter server over gRPC (kumi ps), with libgrpc: AUTO, ON or OFF")
set_property(CACHE KUMI_GRPC PROPERTY STRINGS AUTO ON OFF)
set(KUMI_GRPC_LIBS "")
if(KUMI_GRPC STREQUAL AUTO)
    pkg_check_modules(grpc grpc>=26 gpr)
elseif(KUMI_GRPC)
    pkg_check_modules(grpc REQUIRED grpc>=26 gpr) # the number of its core: 29 is gRPC 1.51
endif()
if(KUMI_GRPC AND grpc_FOUND)
    # pkg-config names its static libraries too, which a program in C does not need
    find_library(KUMI_GRPC_LIB grpc HINTS ${grpc_LIBRARY_DIRS})
    find_library(KUMI_GPR_LIB gpr HINTS ${grpc_LIBRARY_DIRS})
    mark_as_advanced(KUMI_GRPC_LIB KUMI_GPR_LIB)
    set(KUMI_GRPC_LIBS ${KUMI_GRPC_LIB} ${KUMI_GPR_LIB})
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
