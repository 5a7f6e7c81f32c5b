// What the parity tests compare with transformers and PyTorch: reads a Hugging Face folder, runs
// the engine as one rank, and writes what it computed as safetensors. See parity_test.py.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/spec/model_config_json.h"
#include "worker/checkpoint/hf_export.h"
#include "worker/checkpoint/hf_weights.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/collective/self_comm.h"
#include "worker/engine/engine.h"

namespace fedshard::parity {
namespace {

using checkpoint::DType;
using engine::Engine;
using engine::OptimizerOptions;
using NamedTensors = std::map<std::string, at::Tensor>;

struct Arguments {
  std::string model;   // Hugging Face folder.
  std::string tokens;  // Raw int64: for each step, accumulation * rows rows of length + 1.
  std::string out;
  std::string export_to;
  std::string tokenizer;
  std::string dtype = "F32";
  int64_t max_file_bytes = 5'000'000'000;
  int64_t rows = 1;
  int64_t length = 16;
  int64_t accumulation = 1;
  double learning_rate = 1e-3;
  OptimizerOptions optimizer;  // AdamW.
};

void Must(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Model {
  explicit Model(const std::string& folder)
      : config_json(ReadFile(folder + "/config.json")),
        config(Must(ParseModelConfig(config_json))),
        weights(Must(checkpoint::HfWeights::Open(folder, config))) {}

  const std::string config_json;
  const ModelConfig config;
  const std::unique_ptr<checkpoint::HfWeights> weights;
};

// Weights that are in memory, as the exporter wants them.
class TensorSource : public checkpoint::ParameterSource {
 public:
  explicit TensorSource(const NamedTensors& tensors) : tensors_(tensors) {}
  absl::Status Read(const std::string& parameter, int64_t begin, int64_t count,
                    float* out) const override {
    std::copy_n(tensors_.at(parameter).const_data_ptr<float>() + begin, count, out);
    return absl::OkStatus();
  }

 private:
  const NamedTensors& tensors_;
};

void WriteTensors(const std::string& path, const NamedTensors& tensors) {
  std::vector<checkpoint::StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) {
    stored.push_back({name, DType::kF32, tensor.sizes().vec(), 0, 0});
  }
  const auto writer = Must(checkpoint::SafetensorsWriter::Create(path, stored, {}));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = tensor.to(at::kFloat).contiguous();
    Must(writer->WriteFloats(values.const_data_ptr<float>(), values.numel()));
  }
  Must(writer->Finish());
}

// [steps][accumulation] of [rows, length + 1].
std::vector<std::vector<at::Tensor>> ReadSteps(const Arguments& arguments) {
  const std::string bytes = ReadFile(arguments.tokens);
  at::Tensor all = at::empty({static_cast<int64_t>(bytes.size() / sizeof(int64_t))}, at::kLong);
  memcpy(all.mutable_data_ptr(), bytes.data(), all.nbytes());
  all = all.view({-1, arguments.accumulation, arguments.rows, arguments.length + 1});
  std::vector<std::vector<at::Tensor>> steps;
  for (const at::Tensor& step : all.unbind(0)) steps.push_back(step.unbind(0));
  return steps;
}

// The engine of one rank, with the folder's weights.
class LoadedEngine {
 public:
  LoadedEngine(const Model& model, const Arguments& arguments, const OptimizerOptions& optimizer)
      : engine_(Options(model, arguments, optimizer), shard_, replica_) {
    engine_.Load(engine::StateKind::kParameters,
                 [&](const std::string& name, int64_t begin, int64_t count, float* out) {
                   Must(model.weights->Read(name, begin, count, out));
                 });
  }
  Engine* operator->() { return &engine_; }

  NamedTensors Weights(const std::string& prefix = "") {
    NamedTensors weights;
    for (const std::string& name : engine_.ParameterNames()) {
      weights[prefix + name] = engine_.GatherParameter(name);
    }
    return weights;
  }

 private:
  static engine::EngineOptions Options(const Model& model, const Arguments& arguments,
                                       const OptimizerOptions& optimizer) {
    engine::EngineOptions options;
    options.model = model.config;
    options.optimizer = optimizer;
    options.sequence_length = arguments.length;
    options.micro_batch = arguments.rows;
    options.accumulation = arguments.accumulation;
    options.loss_chunk_tokens = 24;  // Several chunks, the last one shorter.
    return options;
  }

  collective::SelfComm shard_;
  collective::SelfComm replica_;
  Engine engine_;
};

// [rows, length, vocabulary] for the first micro-batch.
at::Tensor Logits(LoadedEngine& engine, const at::Tensor& tokens) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& row : tokens.unbind(0)) {
    std::vector<at::Tensor> positions;
    for (int64_t count = 1; count < row.size(0); ++count) {
      positions.push_back(engine->NextTokenLogits(row.narrow(0, 0, count)));
    }
    rows.push_back(at::stack(positions));
  }
  return at::stack(rows);
}

// One step of plain gradient descent moves the weights by the gradient. The step is long, so that
// little of the gradient is lost in the difference, and a power of two, so that nothing is in the
// scale.
NamedTensors FirstGradients(const Model& model, const Arguments& arguments,
                            const std::vector<at::Tensor>& micro_batches) {
  constexpr double kLearningRate = 1024;
  OptimizerOptions optimizer;
  optimizer.type = OptimizerOptions::Type::kSgd;
  optimizer.weight_decay = 0;
  optimizer.clip = 0;
  LoadedEngine engine(model, arguments, optimizer);
  const NamedTensors before = engine.Weights();
  engine->Step(micro_batches, kLearningRate);
  NamedTensors gradients;
  for (const auto& [name, after] : engine.Weights()) {
    gradients["gradient." + name] = (before.at(name) - after) / kLearningRate;
  }
  return gradients;
}

void Train(const Arguments& arguments) {
  const Model model(arguments.model);
  const auto steps = ReadSteps(arguments);
  NamedTensors results = FirstGradients(model, arguments, steps.at(0));
  LoadedEngine engine(model, arguments, arguments.optimizer);
  results["logits"] = Logits(engine, steps.at(0).at(0));
  std::vector<double> losses;
  std::vector<double> norms;
  for (const auto& micro_batches : steps) {
    const engine::StepResult result = engine->Step(micro_batches, arguments.learning_rate);
    losses.push_back(result.loss);
    norms.push_back(result.gradient_norm);
  }
  results["losses"] = at::tensor(losses);
  results["gradient_norms"] = at::tensor(norms);
  results.merge(engine.Weights("weight."));
  WriteTensors(arguments.out, results);
  if (arguments.export_to.empty()) return;
  checkpoint::ExportOptions options;
  options.directory = arguments.export_to;
  options.max_file_bytes = arguments.max_file_bytes;
  const NamedTensors weights = engine.Weights();
  Must(
      checkpoint::ExportHuggingFace(TensorSource(weights), model.config, model.config_json, options)
          .status());
}

void Export(const Arguments& arguments) {
  const Model model(arguments.model);
  checkpoint::ExportOptions options;
  options.directory = arguments.export_to;
  options.dtype = checkpoint::ParseDType(arguments.dtype).value();
  options.tokenizer_directory = arguments.tokenizer;
  options.max_file_bytes = arguments.max_file_bytes;
  Must(checkpoint::ExportHuggingFace(*model.weights, model.config, model.config_json, options)
           .status());
}

// The folder's weights as the engine got them.
void Read(const Arguments& arguments) {
  const Model model(arguments.model);
  LoadedEngine engine(model, arguments, arguments.optimizer);
  WriteTensors(arguments.out, engine.Weights());
}

int Main(int argc, char** argv) {
  Arguments a;
  CLI::App app("Runs the engine on a Hugging Face folder.");
  app.require_subcommand(1);
  CLI::App* train = app.add_subcommand("train", "Logits, gradients, losses, final weights");
  train->add_option("--tokens", a.tokens)->required();
  train->add_option("--rows", a.rows)->required();
  train->add_option("--length", a.length)->required();
  train->add_option("--accumulation", a.accumulation)->required();
  train->add_option("--learning-rate", a.learning_rate)->required();
  train->add_option("--eps", a.optimizer.eps)->required();
  CLI::App* convert = app.add_subcommand("export", "Export what was read");
  convert->add_option("--dtype", a.dtype);
  convert->add_option("--tokenizer", a.tokenizer);
  CLI::App* read = app.add_subcommand("read", "The weights as they were read");
  for (CLI::App* command : {train, convert, read}) {
    command->add_option("--model", a.model)->required();
  }
  for (CLI::App* command : {train, read}) command->add_option("--out", a.out)->required();
  for (CLI::App* command : {train, convert}) {
    command->add_option("--export", a.export_to)->required(command == convert);
    command->add_option("--max-file-bytes", a.max_file_bytes);
  }
  train->callback([&] { Train(a); });
  convert->callback([&] { Export(a); });
  read->callback([&] { Read(a); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::cerr << "parity_tool: " << error.what() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace fedshard::parity

int main(int argc, char** argv) { return fedshard::parity::Main(argc, argv); }
