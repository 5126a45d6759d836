# Rules about the tree, and the PyTorch oracles: tests that are no C++ of ours. Included by tests/CMakeLists.txt.

if(NOT YOKE_SANITIZE)  # nothing here changes under sanitizers
  foreach(check includes docs isa)
    add_test(NAME check_${check}_self_test COMMAND python3 ${PROJECT_SOURCE_DIR}/scripts/check_${check}.py --self-test)
  endforeach()
  add_test(NAME check_includes COMMAND python3 ${PROJECT_SOURCE_DIR}/scripts/check_includes.py)
  if(TARGET yoke)
    set(yoke_binary --yoke $<TARGET_FILE:yoke>)
  endif()
  add_test(NAME check_docs COMMAND python3 ${PROJECT_SOURCE_DIR}/scripts/check_docs.py ${yoke_binary})
  add_test(NAME check_format COMMAND ${PROJECT_SOURCE_DIR}/scripts/lint.sh format)
  if(TARGET yoke_ops_avx2)
    add_test(NAME check_isa COMMAND python3 ${PROJECT_SOURCE_DIR}/scripts/check_isa.py ${PROJECT_BINARY_DIR})
  endif()
endif()

# Tiny models of every family with their losses, gradients and training curves by PyTorch (tests/oracle/README.md). One
# folder serves every build. A test that reads it sets FIXTURES_REQUIRED oracle_models and LABELS oracle.
set(YOKE_PYTHON ${PROJECT_SOURCE_DIR}/.venv/models/bin/python)
set(YOKE_TOKENIZERS_PYTHON ${PROJECT_SOURCE_DIR}/.venv/tokenizers/bin/python)
set(YOKE_ORACLE_DIR ${PROJECT_SOURCE_DIR}/build/oracle)
add_test(NAME oracle_models COMMAND ${YOKE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/oracle/make_models.py ${YOKE_ORACLE_DIR})
set_tests_properties(oracle_models PROPERTIES FIXTURES_SETUP oracle_models LABELS oracle)
if(NOT YOKE_SANITIZE)
  add_test(NAME oracle_reference COMMAND ${YOKE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/oracle/check_reference.py)
  set_tests_properties(oracle_reference PROPERTIES LABELS oracle)
endif()
