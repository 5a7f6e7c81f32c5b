// Proves, on the CPU, the arithmetic of the CUDA kernels: the row code that nvcc compiles for the
// GPU, run by fibres in place of a thread block, equals the references in double precision, values
// and gradients, in fp32 and bf16, for one element and 16 bytes at once, for few and many lanes and
// rows shorter than the lanes; and the order in which lanes run changes no bit. Not covered here:
// the launches and DeviceThreads (gpu_kernels_test.cc, which needs a GPU).
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <tuple>

#include "worker/kernels/cuda/cross_entropy_rows.h"
#include "worker/kernels/cuda/elementwise_rows.h"
#include "worker/kernels/cuda/rms_norm_rows.h"
#include "worker/kernels/cuda/testing/host_threads.h"
#include "worker/kernels/references.h"

namespace fedshard::kernels::cuda {
namespace {

using Threads = HostBlock::Threads;

template <typename T>
constexpr at::ScalarType TypeOf() {
  return sizeof(T) == sizeof(float) ? at::kFloat : at::kBFloat16;
}

template <typename T>
T* Data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

at::Tensor Double(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble); }

// `got` is `expected` after one rounding to its type (bf16: 8 bits, so 2^-8 at most) and fp32
// rounding on the way.
void ExpectNear(const at::Tensor& got, const at::Tensor& expected) {
  const double rounding = got.scalar_type() == at::kBFloat16 ? 1.0 / 256 : 0;
  const double scale = expected.abs().max().item<double>();
  const at::Tensor excess =
      (Double(got) - expected).abs() - 1.01 * rounding * expected.abs() - 2e-6 * scale;
  EXPECT_LE(excess.max().item<double>(), 0) << "of " << scale;
}

// Runs body(threads, row) for every row, with the lanes in both orders; `outputs` must come out the
// same, bit for bit. (They hold the same before each run.)
template <typename Body>
void RunRows(int64_t rows, int lanes, const std::vector<at::Tensor>& outputs, Body body) {
  std::vector<at::Tensor> before, first;
  for (const at::Tensor& output : outputs) before.push_back(output.clone());
  for (const bool last_first : {false, true}) {
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(before[i]);
    for (int64_t row = 0; row < rows; ++row) {
      HostBlock::Run(lanes, last_first, [&](Threads& threads) { body(threads, row); });
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!last_first) {
        first.push_back(outputs[i].clone());
      } else {
        EXPECT_TRUE(at::equal(outputs[i], first[i])) << "output " << i << " depends on the order";
      }
    }
  }
}

// T, elements at once, lanes.
template <typename T, int N, int L>
struct Case {
  using Type = T;
  static constexpr int kWidth = N;
  static constexpr int kLanes = L;
};
using Cases = ::testing::Types<Case<float, 1, 32>, Case<float, 4, 64>, Case<float, 1, 256>,
                               Case<Bf16, 1, 96>, Case<Bf16, 8, 32>, Case<Bf16, 8, 64>>;

template <typename C>
class RowsTest : public ::testing::Test {
 protected:
  using T = typename C::Type;
  static constexpr int kWidth = C::kWidth;
  static constexpr int kLanes = C::kLanes;

  RowsTest() { at::manual_seed(7); }
  static at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape).to(TypeOf<T>()); }
  static at::Tensor Empty(at::IntArrayRef shape) { return at::zeros(shape, TypeOf<T>()); }
  // Sizes with a last piece that few lanes have, and with fewer pieces than lanes.
  static std::vector<int64_t> Sizes() { return {kWidth * 5, kWidth * (2 * kLanes + 3)}; }
};
TYPED_TEST_SUITE(RowsTest, Cases);

TYPED_TEST(RowsTest, RmsNormValuesAndGradients) {
  using T = typename TestFixture::T;
  constexpr int N = TestFixture::kWidth;
  const int64_t rows = 3;
  const double eps = 1e-5;
  for (const int64_t size : TestFixture::Sizes()) {
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(testing::Message() << "size " << size << ", residual " << adds);
      const at::Tensor x = this->Random({rows, size}), residual = this->Random({rows, size});
      const at::Tensor weight = this->Random({size}), grad_y = this->Random({rows, size});
      const at::Tensor grad_sum = this->Random({rows, size});
      at::Tensor sum = this->Empty({rows, size}), y = this->Empty({rows, size});
      at::Tensor scales = at::zeros({rows}), grad_weight = at::zeros({size});
      at::Tensor grad_x = this->Empty({rows, size});
      const auto row_of = [&](const at::Tensor& t, int64_t row) { return Data<T>(t) + row * size; };
      RunRows(rows, this->kLanes, {sum, y, scales}, [&](Threads& threads, int64_t row) {
        const float r = RmsNormRow<N>(
            threads, row_of(x, row), adds ? row_of(residual, row) : nullptr, Data<T>(weight), size,
            static_cast<float>(eps), adds ? row_of(sum, row) : nullptr, row_of(y, row));
        if (threads.lane() == 0) scales.data_ptr<float>()[row] = r;
      });
      const at::Tensor normed = adds ? sum : x;
      if (adds) {
        EXPECT_TRUE(at::equal(sum, (x.to(at::kFloat) + residual.to(at::kFloat)).to(TypeOf<T>())));
      }
      RunRows(rows, this->kLanes, {grad_x, grad_weight}, [&](Threads& threads, int64_t row) {
        RmsNormRowGradient<N>(threads, row_of(normed, row), Data<T>(weight), row_of(grad_y, row),
                              adds ? row_of(grad_sum, row) : nullptr, scales.data_ptr<float>()[row],
                              size, row_of(grad_x, row), grad_weight.data_ptr<float>());
      });

      const at::Tensor leaf = Double(normed).requires_grad_(true);
      const at::Tensor weight_leaf = Double(weight).requires_grad_(true);
      const at::Tensor expected = RmsNormReference(leaf, weight_leaf, eps);
      const auto grads = torch::autograd::grad({expected}, {leaf, weight_leaf}, {Double(grad_y)});
      ExpectNear(y, Double(expected));
      ExpectNear(grad_x, adds ? grads[0] + Double(grad_sum) : grads[0]);
      ExpectNear(grad_weight, grads[1]);
    }
  }
}

TYPED_TEST(RowsTest, SwigluValuesAndGradients) {
  using T = typename TestFixture::T;
  constexpr int N = TestFixture::kWidth;
  const int64_t rows = 2;
  for (const int64_t size : TestFixture::Sizes()) {
    SCOPED_TRACE(size);
    at::Tensor gate_up = this->Random({rows, 2 * size}) * 4;
    gate_up[0][0] = -500;  // Saturates without overflow.
    const at::Tensor grad_y = this->Random({rows, size});
    at::Tensor y = this->Empty({rows, size}), grad = this->Empty({rows, 2 * size});
    const auto gate = [&](const at::Tensor& t, int64_t row) { return Data<T>(t) + row * 2 * size; };
    RunRows(rows, this->kLanes, {y, grad}, [&](Threads& threads, int64_t row) {
      SwigluRow<N>(threads, gate(gate_up, row), gate(gate_up, row) + size, size,
                   Data<T>(y) + row * size);
      SwigluRowGradient<N>(threads, gate(gate_up, row), gate(gate_up, row) + size,
                           Data<T>(grad_y) + row * size, size, gate(grad, row),
                           gate(grad, row) + size);
    });
    const at::Tensor leaf = Double(gate_up).requires_grad_(true);
    const at::Tensor expected = SwigluReference(leaf);
    ExpectNear(y, Double(expected));
    ExpectNear(grad, torch::autograd::grad({expected}, {leaf}, {Double(grad_y)})[0]);
  }
}

TYPED_TEST(RowsTest, RotaryValuesAndGradients) {
  using T = typename TestFixture::T;
  constexpr int N = TestFixture::kWidth;
  const int64_t batch = 2, length = 3, query = 4, key = 2;
  for (const int64_t half : {int64_t{N}, int64_t{3 * N}}) {
    SCOPED_TRACE(half);
    const int64_t rows = batch * length, q_width = query * 2 * half, k_width = key * 2 * half;
    const at::Tensor angles = at::rand({length, half}) * 6;
    const at::Tensor cosine = angles.cos(), sine = angles.sin();
    const at::Tensor qkv = this->Random({rows, q_width + 2 * k_width});
    at::Tensor q = this->Empty({batch, length, query, 2 * half});
    at::Tensor k = this->Empty({batch, length, key, 2 * half}), v = k.clone();
    const at::Tensor grad_q = this->Random(q.sizes()), grad_k = this->Random(k.sizes());
    const at::Tensor grad_v = this->Random(k.sizes());
    at::Tensor grad = at::zeros_like(qkv);
    const HeadCounts heads{query, key, half};
    RunRows(rows, this->kLanes, {q, k, v, grad}, [&](Threads& threads, int64_t row) {
      const float* c = cosine.const_data_ptr<float>() + row % length * half;
      const float* s = sine.const_data_ptr<float>() + row % length * half;
      RotaryRow<false, N>(threads, Data<T>(qkv) + row * qkv.size(1), c, s, heads,
                          Data<T>(q) + row * q_width, Data<T>(k) + row * k_width,
                          Data<T>(v) + row * k_width);
      RotaryRow<true, N>(threads, Data<T>(grad) + row * qkv.size(1), c, s, heads,
                         Data<T>(grad_q) + row * q_width, Data<T>(grad_k) + row * k_width,
                         Data<T>(grad_v) + row * k_width);
    });
    const at::Tensor leaf = Double(qkv).requires_grad_(true);
    const auto expected = RotaryQkvReference(leaf, Double(cosine), Double(sine), batch, query, key);
    ExpectNear(q, Double(expected[0]));
    ExpectNear(k, Double(expected[1]));
    EXPECT_TRUE(at::equal(Double(v), Double(expected[2])));
    ExpectNear(grad, torch::autograd::grad({expected[0], expected[1], expected[2]}, {leaf},
                                           {Double(grad_q), Double(grad_k), Double(grad_v)})[0]);
  }
}

TYPED_TEST(RowsTest, CrossEntropyValuesAndGradients) {
  using T = typename TestFixture::T;
  constexpr int N = TestFixture::kWidth;
  const int64_t rows = 3;
  const float scale = 0.25f;
  for (const int64_t vocabulary : TestFixture::Sizes()) {
    SCOPED_TRACE(vocabulary);
    const at::Tensor logits = this->Random({rows, vocabulary}) * 8;
    const at::Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
    at::Tensor losses = at::zeros({rows, 2}, at::kDouble), grad = logits.clone();
    const int64_t* target = targets.const_data_ptr<int64_t>();
    RunRows(rows, this->kLanes, {losses, grad}, [&](Threads& threads, int64_t row) {
      const int64_t at = row * vocabulary;
      const double loss =
          CrossEntropyRow<false, N>(threads, Data<T>(logits) + at, vocabulary, target[row], scale);
      const double same =
          CrossEntropyRow<true, N>(threads, Data<T>(grad) + at, vocabulary, target[row], scale);
      losses.data_ptr<double>()[2 * row + threads.lane() % 2] =
          threads.lane() % 2 == 0 ? loss : same;
    });
    const at::Tensor leaf = Double(logits).requires_grad_(true);
    const at::Tensor expected =
        at::log_softmax(leaf, 1).gather(1, targets.unsqueeze(1)).squeeze(1).neg();
    ExpectNear(losses.select(1, 0), Double(expected));
    EXPECT_TRUE(at::equal(losses.select(1, 0), losses.select(1, 1)));
    const auto seed = at::full({rows}, static_cast<double>(scale), at::kDouble);
    ExpectNear(grad, torch::autograd::grad({expected}, {leaf}, {seed})[0]);
  }
}

TEST(CrossEntropyRow, OddTargetsAndLogits) {
  const auto loss = [](std::vector<float> logits, int64_t target) {
    double result = 0;
    HostBlock::Run(64, false, [&](Threads& threads) {
      result = CrossEntropyRow<true, 1>(threads, logits.data(), static_cast<int64_t>(logits.size()),
                                        target, 1.0f);
    });
    return result;
  };
  EXPECT_TRUE(std::isnan(loss({1, 2}, 2)));
  EXPECT_TRUE(std::isnan(loss({1, 2}, -1)));
  EXPECT_TRUE(std::isnan(loss({1, NAN}, 0)));
  EXPECT_NEAR(loss({1, 1, -INFINITY}, 0), std::log(2.0), 1e-6);  // A masked entry.
  EXPECT_NEAR(loss({1e30f, 0}, 0), 0, 1e-6);
}

TEST(Bf16, RoundsAsLibTorchDoes) {
  at::manual_seed(1);
  at::Tensor x =
      at::cat({at::randn({2000}), at::randn({2000}) * 1e-39, at::randn({100}) * 1e38,
               at::tensor({0.0f, -0.0f, 1.00390625f, 1.01171875f, INFINITY, -INFINITY})});
  const at::Tensor expected = x.to(at::kBFloat16);
  for (int64_t i = 0; i < x.numel(); ++i) {
    Bf16 got;
    FromFloat(x.data_ptr<float>()[i], got);
    ASSERT_EQ(got.bits, Data<uint16_t>(expected)[i]) << x[i].item<float>();
  }
  EXPECT_TRUE(std::isnan(Rounded<Bf16>(NAN)));
}

TEST(HostBlock, TellsWhenLanesDoNotMeet) {
  EXPECT_THROW(HostBlock::Run(64, false,
                              [](Threads& threads) {
                                if (threads.lane() < 40) threads.Sync();
                              }),
               std::logic_error);
}

}  // namespace
}  // namespace fedshard::kernels::cuda
