-- test_special_values.lua - every op at inf, NaN, subnormal and huge inputs, forward and backward, against what PyTorch
-- makes of them in float32.
--
-- An infinity must be that infinity and a NaN a NaN; finite numbers lie within the case's growth in spacings of
-- float32, as in test_golden_ops.lua, or in spacings of the smallest subnormals: nothing is flushed to zero.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local cases = dofile("tests/lua/cases.lua")

local SMALLEST = 2 ^ -149

-- Where PyTorch's numbers are no measure: the cases, between bars, their variants, which part is then not compared
-- ("out" or "grad"), and why.
local exceptions = {
  { "prod", "huge", "out", "a product that overflows on its way, in another order" },
  { "prod | prod (rows)", "mixed", "out", "a product that ends below the smallest number, in another order" },
  { "prod | prod (rows)", "inf nan huge mixed", "grad",
    "the product of the other factors; PyTorch divides by the factor where none is 0" },
  { "std (correction 0) | std (correction 1) | std (kept)", "huge mixed subnormal", "out",
    "squares overflow and underflow in float32; PyTorch takes them in float64" },
  { "std (correction 0) | std (correction 1) | std (kept)", "huge mixed subnormal", "grad",
    "as the results that it divides by" },
  { "i0 | i0 (size one) | i0 (to 10)", "inf mixed", "out", "it grows without bound; PyTorch's is inf / inf" },
  { "i0 | i0 (size one) | i0 (to 10)", "inf mixed", "grad", "as above" },
  { "igamma (larger) | igammac (larger) | igammac", "huge", "out",
    "0 or 1 beside a huge number; PyTorch's logarithm of gamma overflows in float32" },
  { "igamma | igamma (larger) | igammac (larger)", "mixed", "out", "a NaN stays NaN, beside a 0 too" },
  { "igamma | igamma (larger)", "subnormal", "out", "all lies below of a subnormal first argument; PyTorch says 0" },
  { "digamma | digamma (size one) | digamma (negative)", "inf mixed", "grad", "0 at infinity, NaN at -infinity; \z
    PyTorch's zeta says NaN and inf" },
  { "polygamma (order 1) | polygamma (order 2) | polygamma (order 4)", "inf mixed", "out", "as above" },
  { "polygamma (order 1) | polygamma (order 2) | polygamma (order 4)", "inf mixed", "grad", "as above" },
  { "logit", "mixed", "grad", "1 / (x (1 - x)) at -0" },
  { "softsign | softsign (size one)", "inf mixed", "grad", "the slope falls to 0; PyTorch's quotient is inf / inf" },
  { "copysign | copysign (number)", "inf nan mixed", "grad", "the slope is a sign; PyTorch divides the result by x" },
  { "copysign", "nan", "out", "the sign of a NaN is not kept" },
    { "signbit", "nan", "out", "the sign of a NaN is not kept" },
  { "relu6 | relu6 (to 9) | hardtanh | hardtanh (bounds) | softshrink | softshrink (lambd)", "nan mixed", "grad",
    "0 at NaN; PyTorch's is that or what comes in, by the place of the element" },
  { "clamp (tensors) | clamp (a tensor and a number)", "nan mixed", "grad",
    "beside a NaN as maximum's, then as minimum's; PyTorch has a rule of its own where both bounds are tensors" },
  { "glu", "mixed", "grad", "a huge gradient times a overflows before the slope of the sigmoid" },
  { "selu | selu (size one)", "nan mixed", "grad", "as elu" },
  { "celu | celu (size one) | celu (alpha)", "nan mixed", "grad", "as elu" },
  { "std_mean", "huge mixed subnormal inf", "out", "as std; and PyTorch's mean beside it is NaN where there is an \z
    infinity" },
  { "std_mean", "huge mixed subnormal inf", "grad", "as the results" },
  { "var_mean", "inf mixed", "out", "PyTorch's mean beside the variance is NaN where there is an infinity" },
  { "cumprod | cumprod (zeros)", "inf nan huge mixed", "grad",
    "the product of the other factors; PyTorch divides by the factor where none is 0" },
  { "scatter (multiply) | scatter_reduce (prod) | scatter_reduce (prod, without its own) | scatter_reduce (first dim)"
    .. " | index_reduce", "inf nan huge mixed subnormal", "grad",
    "the product of the other factors; PyTorch divides by the factor where none is 0" },
  { "scatter_reduce (amax) | scatter_reduce (amin) | scatter_reduce (amax, without its own) | scatter_reduce (amin, "
    .. "without its own) | index_reduce (amax) | index_reduce (amin)", "nan mixed", "grad",
    "where the result is NaN its gradient goes to the NaN; PyTorch shares it among none, which is NaN for all" },
  { "index_reduce", "mixed", "out", "products overflow and underflow in another order" },
  { "cumprod (zeros)", "mixed", "out", "products overflow and underflow in another order" },
  { "logcumsumexp", "inf nan huge mixed", "grad", "0 or infinity divided by itself where the sum is; PyTorch works \z
    by the signs of the gradient" },
  { "renorm", "inf nan huge mixed", "grad", "the slope of a norm that is not finite, times 0, in slices that stay \z
    as they are" },
  { "addr | addbmm", "huge", "out", "the product overflows in PyTorch before it meets the rest" },
  { "addbmm | einsum (bilinear) | einsum (repeated)", "huge mixed", "grad", "infinities meet in another order" },
  { "searchsorted | searchsorted (rows, right) | searchsorted (sorter) | bucketize | bucketize (int32)",
    "inf nan huge mixed", "out",
    "the boundaries are not sorted then" },
  { "histc", "huge", "out", "the place of an element overflows" },
  { "nanmedian (all)", "mixed", "grad", "of equal elements one has the gradient" },
  { "elu | elu (size one) | elu (alpha)", "nan mixed", "grad", "x is NaN, and so is the gradient; PyTorch's is what \z
    comes in" },
  { "atan2", "huge", "grad", "squares overflow, and the quotient by them is 0; PyTorch multiplies by inf * 0" },
  { "addcdiv", "huge", "grad", "y / z overflows before the product with a small gradient does not" },
  { "mse_loss (mean)", "huge", "grad", "2 d overflows before it is divided by the number of elements" },
  { "matmul (broadcast batches)", "mixed", "out", "infinities and overflows of a sum meet in another order" },
  { "addmm", "huge", "out", "2 a b overflows in PyTorch before beta x is added" },
  { "addmm", "mixed", "grad", "infinities meet in another order" },
  { "baddbmm", "mixed", "out", "infinities meet in another order" },
  { "linear (no bias, 3 dims)", "mixed", "grad", "infinities meet in another order" },
  { "mlp (relu)", "huge", "out", "a product that overflows meets an infinity; fused, it does not overflow" },
  { "conv2d (dilation, groups)", "inf nan mixed", "out", "PyTorch multiplies its padding's zeros by a weight that \z
    is not finite; ours has no such products" },
  { "conv2d (dilation, groups)", "mixed", "grad", "as above, and infinities meet in another order" },
  { "conv1d (all options) | conv1d (relu) | conv1d (same) | conv2d (same) | conv3d (same)", "inf nan mixed", "out",
    "PyTorch multiplies its padding's zeros by a weight that is not finite; ours has no such products" },
  { "conv1d (relu)", "inf nan", "grad", "as above: relu lets more of it through" },
  { "conv1d (all options) | conv1d (relu) | conv1d (same) | conv2d (same) | conv3d (same)", "mixed", "grad",
    "as above, and infinities meet in another order" },
  { "conv1d | conv_transpose1d | conv_transpose2d | conv_transpose3d", "mixed", "out",
    "infinities meet in another order" },
  { "conv1d | conv2d (valid) | conv_transpose1d | conv_transpose1d (all options) | conv_transpose2d | "
    .. "conv_transpose2d (all options) | conv_transpose3d", "mixed", "grad", "infinities meet in another order" },
  { "conv_transpose1d (all options) | conv_transpose3d (all options)", "inf nan mixed", "grad",
    "what is cut off has no gradient; PyTorch multiplies zeros by infinities" },
  { "layer_norm", "huge mixed", "out", "squares of 3e38 overflow, in another order" },
  { "layer_norm", "inf huge mixed", "grad", "infinities meet in another order" },
  { "layer_norm (two dims, plain)", "subnormal", "out", "the spacing of subnormal inputs, times 1 / sqrt(eps)" },
  { "rms_norm", "huge", "grad", "squares overflow in float32" },
  { "add_layer_norm", "huge", "grad", "squares overflow in float32" },
  { "batch_norm (training)", "inf huge", "out", "PyTorch folds an infinite weight into the bias" },
  { "batch_norm (evaluation)", "huge mixed", "grad", "an overflow in another order" },
  { "batch_norm (relu, training) | batch_norm (residual and relu, training)", "inf", "out", "as in training" },
  { "batch_norm (residual and relu, evaluation)", "mixed", "out", "the same of running statistics" },
  { "batch_norm (relu, training) | batch_norm (residual and relu, training)", "inf", "grad",
    "as above: relu lets more of it through" },
  { "batch_norm (residual and relu, evaluation)", "mixed", "grad", "as above: relu lets more of it through" },
  { "batch_norm (residual, plain)", "huge", "grad", "squares overflow in float32" },
  { "group_norm | group_norm (no places)", "inf huge", "out", "PyTorch folds the weight into a factor and the bias" },
  { "group_norm | group_norm (a channel each, plain) | group_norm (no places)", "huge mixed", "out",
    "squares overflow in PyTorch's float32" },
  { "group_norm | group_norm (a channel each, plain) | group_norm (no places)", "inf huge mixed subnormal", "grad",
    "infinities, overflows and the last bits of subnormals meet in another order" },
  { "cross_entropy (sum)", "mixed", "grad", "an ignored row gets 0, whatever the values" },
  { "cross_entropy (weights, smoothing, ignored)", "inf nan mixed subnormal", "grad",
    "an ignored row gets 0, whatever the weights" },
  { "cross_entropy (weights, smoothing, ignored)", "huge", "out",
    "the sum of the weights overflows in float32; the device adds in float64" },
  { "nll_loss", "mixed", "out", "as above" },
  { "cross_entropy (weights, smoothing, ignored)", "subnormal", "out", "subnormal weights have 14 bits" },
  { "cross_entropy (probabilities)", "inf", "out", "a target of inf is no probability" },
  { "linear_cross_entropy (bias, sum, ignored)", "inf nan huge mixed", "grad", "an ignored row gets 0, whatever the \z
    values" },
  { "nll_loss", "subnormal", "grad", "PyTorch divides by the sum of subnormal weights first" },
  { "binary_cross_entropy_with_logits | binary_cross_entropy_with_logits (weights, sum) | "
      .. "binary_cross_entropy_with_logits (pos_weight)", "inf huge mixed", "grad",
    "a target of inf is no probability" },
  { "kl_div", "inf huge", "out", "a target of inf is no probability" },
  { "binary_cross_entropy", "subnormal", "grad", "PyTorch takes x (1 - x) to be at least 1e-12" },
  { "cosine_embedding_loss (mean) | cosine_embedding_loss (none) | cosine_embedding_loss (sum)", "huge mixed", "grad",
    "squares overflow in float32" },
  { "multi_margin_loss (mean) | multi_margin_loss (none) | multi_margin_loss (sum) | multi_margin_loss (one sample) \z
    | multi_margin_loss (squares, weights)", "nan mixed", "out",
    "a NaN stays NaN; PyTorch takes it for a margin that is kept" },
  { "multi_margin_loss (mean) | multi_margin_loss (none) | multi_margin_loss (sum) | multi_margin_loss (one sample) \z
    | multi_margin_loss (squares, weights)", "nan mixed huge", "grad",
    "as above, and squares overflow in another order" },
  { "multilabel_margin_loss (mean) | multilabel_margin_loss (none) | multilabel_margin_loss (sum) | \z
    multilabel_margin_loss (one sample)", "nan mixed", "out",
    "as above" },
  { "multilabel_margin_loss (mean) | multilabel_margin_loss (none) | multilabel_margin_loss (sum) | \z
    multilabel_margin_loss (one sample)", "nan mixed", "grad",
    "as above" },
  { "multilabel_soft_margin_loss (mean) | multilabel_soft_margin_loss (none) | multilabel_soft_margin_loss (sum) | \z
    multilabel_soft_margin_loss (weights)", "inf huge mixed", "out",
    "a target of inf is no probability" },
  { "multilabel_soft_margin_loss (mean) | multilabel_soft_margin_loss (none) | multilabel_soft_margin_loss (sum) | \z
    multilabel_soft_margin_loss (weights)", "inf huge mixed subnormal", "grad",
    "as above; by a target it is -x, which PyTorch's two logarithms lose near 0" },
  { "poisson_nll_loss (of rates, full)", "mixed", "grad",
    "where Stirling's formula does not count it has no part; PyTorch multiplies it by 0" },
  { "sigmoid_focal_loss | sigmoid_focal_loss (no weights, mean) | sigmoid_focal_loss (sum)", "huge mixed", "grad",
    "a target of 3e38 is no probability" },
  { "soft_margin_loss (mean) | soft_margin_loss (none) | soft_margin_loss (sum)", "huge", "out",
    "it does not overflow; PyTorch's exponential does" },
  { "soft_margin_loss (mean) | soft_margin_loss (none) | soft_margin_loss (sum)", "inf huge mixed", "grad",
    "as above" },
  { "bilinear | bilinear (no bias, 3 dims)", "huge mixed", "grad", "a product that overflows, in another order" },
  { "cdist (p = 1, broadcast)", "nan mixed", "grad", "the slope of a magnitude is 0 at NaN, as abs's" },
  { "cdist", "huge", "grad", "squares overflow in float32" },
  { "cdist (by a product) | cdist (asked by a product, broadcast)", "huge", "grad",
    "twice a row overflows in float32; PyTorch's gradient makes no such rows" },
  { "scaled_dot_product_attention", "nan mixed", "out", "a row of NaN stays NaN; PyTorch's is 0" },
  { "scaled_dot_product_attention (causal)", "nan mixed", "out", "as above" },
  { "scaled_dot_product_attention (causal)", "inf huge mixed", "grad", "what is masked has no part in the sums; \z
    PyTorch multiplies it by 0" },
  { "scaled_dot_product_attention (bool mask)", "inf nan huge mixed", "out",
    "what is masked has no part in the sums; PyTorch adds -inf to it" },
  { "scaled_dot_product_attention (bool mask)", "inf nan huge", "grad", "as above; PyTorch multiplies it by 0" },
  { "scaled_dot_product_attention (window) | scaled_dot_product_attention (window, causal) | \z
    scaled_dot_product_attention (gradient of a broadcast mask, causal)", "inf nan huge mixed", "out",
    "what is too far or later has no part in the sums; PyTorch adds -inf to it" },
  { "scaled_dot_product_attention (window) | scaled_dot_product_attention (window, causal) | \z
    scaled_dot_product_attention (gradient of a broadcast mask, causal)", "inf nan huge mixed", "grad",
    "as above; PyTorch multiplies it by 0" },
  { "scaled_dot_product_attention (cross, scale)", "nan mixed", "out", "as above" },
  { "embedding_bag (max by offsets)", "mixed", "grad", "a bag whose largest is NaN shares its gradient among none" },
  { "grid_sample (bicubic) | grid_sample (bicubic, border) | grid_sample (bicubic, reflection) | grid_sample \z
    (reflection) | "
    .. "grid_sample (reflection, corners) | grid_sample (zeros) | grid_sample (border) | grid_sample (corners) | "
    .. "grid_sample (volume)",
    "inf nan huge mixed", "grad",
      "infinities and overflows of a sum meet in another order; the slope of a bound is 0" },
  { "instance_norm | instance_norm (evaluation)", "inf huge", "out", "PyTorch folds an infinite weight into the bias" },
  { "instance_norm | instance_norm (evaluation)", "inf huge", "grad", "as above, and overflows in another order" },
  { "interpolate (bicubic) | interpolate (bilinear, corners) | interpolate (bilinear, smooth)", "mixed", "out",
    "one dimension after the other, where infinities meet in another order; nothing beyond an edge is multiplied \z
      by 0" },
  { "local_response_norm | local_response_norm (even)", "huge mixed", "grad",
    "a square overflows, and 0 * inf is NaN" },
}

-- The reason why this part of a variant is not compared, if there is one.
local function exception(case, variant, part)
  for _, row in ipairs(exceptions) do
    local meant = ("| " .. row[1] .. " |"):find("| " .. case.name .. " |", 1, true)
    if meant and row[3] == part and row[2]:find(variant:match("^%a+"), 1, true) then
      row.used = true
      return row[4]
    end
  end
end

local function numbers(t) return t:detach():to("float64"):reshape(-1):tolist() end

-- Sums are as exact as their terms, so the spacing is that of a quarter of the largest element, huge ones aside.
local function compare(got, want, growth, what)
  local a, b, largest = numbers(got), numbers(want), 0
  if #a ~= #b then error(("%s has %d elements, expected %d"):format(what, #a, #b)) end
  for _, x in ipairs(b) do
    if math.abs(x) < 1e30 then largest = math.max(largest, math.abs(x)) end
  end
  for i = 1, #b do
    local finite = math.abs(b[i]) < math.huge
    local tolerance = finite and growth * (cases.epsilon.float32 * (math.abs(b[i]) + largest / 4) + SMALLEST) or 0
    if not (a[i] == b[i] or a[i] ~= a[i] and b[i] ~= b[i] or finite and math.abs(a[i] - b[i]) <= tolerance) then
      error(("%s, element %d: %.9g, expected %.9g within %.3g"):format(what, i, a[i], b[i], tolerance))
    end
  end
end

local function check(case, variant, texts)
  local inputs = cases.inputs(case, "float32", { grad = false })
  for i = 0, case.inputs - 1 do
    local text = texts["in" .. i]
    if text then inputs[i] = cases.tensor(text, numbers(inputs[i])):to(gb.get_default_device()) end
    if case.differentiable[i] then inputs[i]:requires_grad_() end
  end
  local outputs = cases.run(case, inputs)
  local compared = exception(case, variant, "out") and 0 or #outputs
  for i = 1, compared do compare(outputs[i], cases.tensor(texts["out" .. i - 1]), case.growth, "output " .. i) end
  local gradients = cases.gradients(case, inputs, outputs)
  if exception(case, variant, "grad") then return end
  for i, g in pairs(gradients) do
    compare(g, cases.tensor(texts["grad" .. i]), 2 * case.growth, "the gradient of input " .. i)
  end
end

for _, line in ipairs(cases.read("special")) do
  local name, variant = line.name:match("^(.*): (.-)$")
  describe(name, function()
    it(variant, function() check(cases.named[name], variant, line.tensors) end)
  end)
end

-- gelu in float32 has a formula of its own. Within 1.5 spacings of float32 at x (at 1, nearer to 0) of the float64 one:
-- x * Phi(x) has no more to give where Phi is near 1. And where it falls to 0 it keeps digits that 1 + erf would lose.
describe("gelu", function()
  local F = gb.nn.functional
  local function both(x)
    x:requires_grad_()
    local y = F.gelu(x)
    y:sum():backward()
    return y:detach():to("float64"), x.grad:to("float64")
  end
  it("is as precise as float32 from one end to the other", function()
    local x = gb.linspace(-18, 18, 200001, { dtype = "float32" })
    local size = x:to("float64"):abs():clamp(1, 18)
    local y, slope = both(x:clone())
    local exact_y, exact_slope = both(x:to("float64"))
    expect(((y - exact_y):abs() / size):max():item() < 1.5 * 2 ^ -23):to_be(true)
    expect(((slope - exact_slope):abs() / size):max():item() < 1.5 * 2 ^ -23):to_be(true)
  end)
  it("keeps its digits where it falls to 0", function()
    local y = both(gb.tensor { -4.0, -6.0, -8.0 })
    local exact = gb.tensor({ -4 * 3.1671241833119921e-5, -6 * 9.8658764503769814e-10, -8 * 6.2209605742717841e-16 },
      { dtype = "float64" })
    -- x^2 / 2 spacings, of the exponential's argument, and one
    expect((y / exact - 1):abs():max():item() < 33 * 2 ^ -23):to_be(true)
    expect(F.gelu(gb.tensor { -1e30 }):item()):to_be(-0.0)
  end)
end)

describe("exceptions", function()
  for _, row in ipairs(exceptions) do
    it(row[1] .. " " .. row[2], function() if not row.used then error("no variant is meant by it") end end)
  end
end)

gb.test.finish()
