# Puts a text file into the program: `extern const char* const <name>` of namespace yoke holds it.
function(yoke_embed target name file)
  file(READ ${file} YOKE_TEXT)
  set(YOKE_TEXT_NAME ${name})
  set(source ${PROJECT_BINARY_DIR}/embedded/${name}.cc)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded.cc.in ${source} @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  target_sources(${target} PRIVATE ${source})
endfunction()
