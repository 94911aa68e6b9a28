# SPDX-License-Identifier: Apache-2.0
# `make install`: the command, both libraries, public headers, kumi.pc and the man page.
function(kumi_install)
    install(TARGETS kumi_static kumi_shared ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    if(TARGET kumi)
        install(TARGETS kumi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kumi DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    configure_file(${PROJECT_SOURCE_DIR}/cmake/kumi.pc.in ${PROJECT_BINARY_DIR}/kumi.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/kumi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
    install(FILES ${PROJECT_SOURCE_DIR}/docs/kumi.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endfunction()
