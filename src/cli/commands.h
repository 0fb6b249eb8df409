// All commands of the program.
#pragma once

#include <CLI/CLI.hpp>

namespace halfbyte {

void AddCommands(CLI::App& app);

// One command each, in the file of its name.
void AddBench(CLI::App& app);
void AddBenchModel(CLI::App& bench);
void AddBenchServe(CLI::App& bench);
void AddCalibrate(CLI::App& app);
void AddConvert(CLI::App& app);
void AddDoctor(CLI::App& app);
void AddGenerate(CLI::App& app);
void AddInspect(CLI::App& app);
void AddVerify(CLI::App& app);
void AddLogits(CLI::App& app);
void AddPerplexity(CLI::App& app);
void AddServe(CLI::App& app);

}  // namespace halfbyte
