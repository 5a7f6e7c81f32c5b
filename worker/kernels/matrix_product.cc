#include "worker/kernels/matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <optional>
#include <string_view>

namespace fedshard::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::atomic<bool> use_one_dnn = false;

using OptionalScalars = c10::List<std::optional<at::Scalar>>;
using PointwiseLinear = at::Tensor(const at::Tensor& input, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias,
                                   std::string_view operation, OptionalScalars scalars,
                                   std::optional<std::string_view> algorithm);

constexpr char kPointwiseLinear[] = "mkldnn::_linear_pointwise";

// The one way to a strict fp32 product of oneDNN: no reduced precision is permitted to it.
at::Tensor OneDnnTimesTransposed(const at::Tensor& a, const at::Tensor& b) {
  static const auto linear =
      c10::Dispatcher::singleton().findSchemaOrThrow(kPointwiseLinear, "").typed<PointwiseLinear>();
  return linear.call(a, b, std::nullopt, "none", OptionalScalars(), std::nullopt);
}

bool TakesOneDnn(const at::Tensor& a) {
  return use_one_dnn.load(std::memory_order_relaxed) && a.is_cpu() && a.scalar_type() == at::kFloat;
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& residual) {
    context->save_for_backward({x, weight});
    context->saved_data["residual"] = residual.has_value();
    at::Tensor y = TimesTransposed(x, weight);
    if (residual) y.add_(*residual);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& grad = grads[0];
    at::Tensor grad_x;
    if (context->needs_input_grad(0)) grad_x = TimesTransposed(grad, saved[1].t());
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) grad_weight = TimesTransposed(grad.t(), saved[0].t());
    const bool residual = context->saved_data["residual"].toBool();
    return {grad_x, grad_weight, residual ? grad : at::Tensor()};
  }
};

}  // namespace

bool HasOneDnn() {
  return at::hasMKLDNN() &&
         c10::Dispatcher::singleton().findSchema({kPointwiseLinear, ""}).has_value();
}

void SetMatrixLibrary(MatrixLibrary library) { use_one_dnn = library == MatrixLibrary::kOneDnn; }

at::Tensor TimesTransposed(const at::Tensor& a, const at::Tensor& b, const at::Tensor& space) {
  const at::NoGradGuard no_grad;
  if (TakesOneDnn(a)) return OneDnnTimesTransposed(a, b);
  if (!space.defined() || space.scalar_type() != a.scalar_type()) return a.mm(b.t());
  at::Tensor out = space;
  return at::mm_out(out, a, b.t());
}

void StoreTimesTransposed(const at::Tensor& a, const at::Tensor& b, at::Tensor out) {
  const at::Tensor product = TimesTransposed(a, b, out);
  if (!product.is_same(out)) out.copy_(product);
}

void AddTimesTransposed(const at::Tensor& a, const at::Tensor& b, at::Tensor out) {
  const at::NoGradGuard no_grad;
  if (TakesOneDnn(a)) {
    out.add_(OneDnnTimesTransposed(a, b));
  } else if (out.scalar_type() != a.scalar_type()) {
    out.add_(a.mm(b.t()));
  } else {
    out.addmm_(a, b.t());
  }
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& residual) {
  return LinearFunction::apply(x, weight, residual);
}

}  // namespace fedshard::kernels
