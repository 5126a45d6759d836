#include "cli/run.h"

int main(int argc, char** argv) { return yoke::run(argc, argv); }
