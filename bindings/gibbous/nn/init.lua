-- nn/init.lua - initialisers, PyTorch's formulas. Each fills a tensor in place, without gradients, and returns it.

local gb, native = ...
local fail, define = native.fail, native.define -- fail raises with the recipe's line
local format, sqrt, match, unpack = string.format, math.sqrt, string.match, table.unpack
local init = gb.nn.init

-- An initialiser: its record, and what it does to the tensor without gradients.
local function initialiser(record, fn)
  init[match(record, "^gb%.nn%.init%.([%w_]+)")] = define(record, "strict", function(t, ...)
    gb.no_grad(fn, t, ...)
    return t
  end)
end

-- Fan-in and fan-out of a weight [out, in, ...receptive field].
local function fans(t, name)
  local shape = t.shape
  if #shape < 2 then fail(format("init.%s needs a tensor of at least 2 dimensions, this one has %d", name, #shape)) end
  local field = 1
  for i = 3, #shape do field = field * shape[i] end
  return shape[2] * field, shape[1] * field
end

local gains = { linear = 1, sigmoid = 1, tanh = 5 / 3, relu = sqrt(2), selu = 3 / 4 }

local function gain_of(nonlinearity, slope)
  if nonlinearity == "leaky_relu" then return sqrt(2 / (1 + (slope or 0.01) ^ 2)) end
  return gains[nonlinearity] or fail(format("init: no gain is known for '%s'", nonlinearity))
end

init.calculate_gain = define("gb.nn.init.calculate_gain(nonlinearity: string, slope?: number) -> number: The gain \z
  of an activation (LeCun's rule); leaky_relu takes its slope. Errors: an activation without one. Example: \z
  print(gb.nn.init.calculate_gain(\"relu\"))", "strict", gain_of)

initialiser("gb.nn.init.uniform_(t: tensor, low: number = 0, high: number = 1) -> tensor: Uniform random numbers in \z
  [low, high). Example: gb.nn.init.uniform_(x)", function(t, low, high) t:uniform_(low, high) end)
initialiser("gb.nn.init.normal_(t: tensor, mean: number = 0, std: number = 1) -> tensor: Normal random numbers. \z
  Example: gb.nn.init.normal_(x, 0, 0.02)", function(t, mean, std) t:normal_(mean, std) end)
initialiser("gb.nn.init.constant_(t: tensor, value: number) -> tensor: Every element becomes value. Example: \z
  gb.nn.init.constant_(x, 0.5)",
  function(t, value) t:fill_(value) end)
initialiser("gb.nn.init.zeros_(t: tensor) -> tensor: Every element becomes 0. Example: gb.nn.init.zeros_(x)",
  function(t) t:fill_(0) end)
initialiser("gb.nn.init.ones_(t: tensor) -> tensor: Every element becomes 1. Example: gb.nn.init.ones_(x)",
  function(t) t:fill_(1) end)

initialiser("gb.nn.init.trunc_normal_(t: tensor, mean: number = 0, std: number = 1, low: number = -2, high: number \z
  = 2) -> tensor: Normal random numbers within [low, high]: those outside are drawn again. Example: \z
  gb.nn.init.trunc_normal_(x)", function(t, mean, std, low, high)
  t:normal_(mean, std)
  for _ = 1, 100 do
    local outside = t:lt(low):logical_or(t:gt(high))
    if not outside:any():item() then return end
    t:copy_(gb.where(outside, gb.randn(t.shape, { dtype = t.dtype }):mul(std):add(mean), t))
  end
  t:clamp_(low, high)
end)

initialiser("gb.nn.init.xavier_uniform_(t: tensor, gain: number = 1) -> tensor: Glorot, Bengio 2010: uniform, with \z
  variance 2 / (fan_in + fan_out). Errors: fewer than 2 dimensions. Example: gb.nn.init.xavier_uniform_(x)",
  function(t, gain)
  local fan_in, fan_out = fans(t, "xavier_uniform_")
  local bound = gain * sqrt(6 / (fan_in + fan_out))
  t:uniform_(-bound, bound)
end)

initialiser("gb.nn.init.xavier_normal_(t: tensor, gain: number = 1) -> tensor: Glorot, Bengio 2010: normal, with \z
  variance 2 / (fan_in + fan_out). Errors: fewer than 2 dimensions. Example: gb.nn.init.xavier_normal_(x)",
  function(t, gain)
  local fan_in, fan_out = fans(t, "xavier_normal_")
  t:normal_(0, gain * sqrt(2 / (fan_in + fan_out)))
end)

-- He et al. 2015: standard deviation gain / sqrt(fan).
local function kaiming_std(t, options, name)
  local fan_in, fan_out = fans(t, name)
  return gain_of(options.nonlinearity, options.a) / sqrt(options.mode == "fan_out" and fan_out or fan_in)
end

initialiser("gb.nn.init.kaiming_uniform_(t: tensor; a: number = 0, mode: \"fan_in\"|\"fan_out\" = \"fan_in\", \z
  nonlinearity: string = \"leaky_relu\") -> tensor: He et al. 2015: uniform, with standard deviation gain / \z
  sqrt(fan); a is the slope. Errors: fewer than 2 dimensions. Example: gb.nn.init.kaiming_uniform_(x, { nonlinearity \z
  = \"relu\" })", function(t, options)
  local bound = sqrt(3) * kaiming_std(t, options, "kaiming_uniform_")
  t:uniform_(-bound, bound)
end)

initialiser("gb.nn.init.kaiming_normal_(t: tensor; a: number = 0, mode: \"fan_in\"|\"fan_out\" = \"fan_in\", \z
  nonlinearity: string = \"leaky_relu\") -> tensor: He et al. 2015: normal, with standard deviation gain / \z
  sqrt(fan); options as kaiming_uniform_'s. Errors: fewer than 2 dimensions. Example: gb.nn.init.kaiming_normal_(x)",
  function(t, options) t:normal_(0, kaiming_std(t, options, "kaiming_normal_")) end)

initialiser("gb.nn.init.orthogonal_(t: tensor, gain: number = 1) -> tensor: Orthonormal rows or columns (Saxe et \z
  al. 2013), by Gram-Schmidt done twice, which is orthogonal to rounding. Errors: fewer than 2 dimensions. Example: \z
  gb.nn.init.orthogonal_(x)", function(t, gain)
  local shape = t.shape
  if #shape < 2 then
    fail(format("init.orthogonal_ needs a tensor of at least 2 dimensions, this one has %d", #shape))
  end
  if t:numel() == 0 then return end
  local rows, columns = shape[1], t:numel() // shape[1]
  local wide = rows < columns
  local n, m = wide and columns or rows, wide and rows or columns
  local basis = gb.randn(m, n, { dtype = "float64" })
  for i = 1, m do
    local v = basis[i]
    for _ = 1, 2 do
      if i > 1 then
        local before = basis:narrow(1, 1, i - 1)
        v:sub_(before:t():matmul(before:matmul(v)))
      end
    end
    v:div_(v:norm())
  end
  t:copy_((wide and basis or basis:t()):mul(gain):reshape(unpack(shape)))
end)

initialiser("gb.nn.init.eye_(t: tensor) -> tensor: 1 on the diagonal of a matrix, else 0. Errors: no matrix. Example: \z
  gb.nn.init.eye_(gb.empty(3, 3))", function(t)
  if t.ndim ~= 2 then fail(format("init.eye_ takes a matrix, this tensor has %d dimensions", t.ndim)) end
  t:copy_(gb.eye(t:size(1), t:size(2), { device = t.device }))
end)

initialiser("gb.nn.init.dirac_(t: tensor, groups: int = 1) -> tensor: The weight of a convolution that gives its \z
  input, in each group as many channels as it can. Errors: a tensor that is no such weight, groups that do not divide \z
  its first size. Example: gb.nn.init.dirac_(gb.empty(4, 4, 3, 3))", function(t, groups)
  if t.ndim < 3 or t.ndim > 5 then
    fail(format("init.dirac_ takes a weight of 3 to 5 dimensions, this one has %d", t.ndim))
  end
  if groups < 1 or t:size(1) % groups ~= 0 then
    fail(format("init.dirac_: %d groups do not divide the first size, %d", groups, t:size(1)))
  end
  t:fill_(0)
  local out = t:size(1) // groups
  for g = 0, groups - 1 do
    for c = 1, math.min(out, t:size(2)) do
      local at = t:select(1, g * out + c):select(1, c)
      while at.ndim > 0 do at = at:select(1, at:size(1) // 2 + 1) end
      at:fill_(1)
    end
  end
end)

initialiser("gb.nn.init.sparse_(t: tensor, sparsity: number, std: number = 0.01) -> tensor: Normal random numbers, of \z
  which a share of each column, rounded up, is 0. Errors: no matrix, a share beyond 0 .. 1. Example: \z
  gb.nn.init.sparse_(gb.empty(4, 3), 0.5)", function(t, sparsity, std)
  if t.ndim ~= 2 then fail(format("init.sparse_ takes a matrix, this tensor has %d dimensions", t.ndim)) end
  if not (sparsity >= 0 and sparsity <= 1) then fail(format("init.sparse_: sparsity is %g; it is 0 .. 1", sparsity)) end
  t:normal_(0, std)
  local rows, columns = t:size(1), t:size(2)
  local zeros = math.ceil(rows * sparsity)
  if zeros == 0 or columns == 0 then return end
  local order = gb.rand({ rows, columns }, { device = t.device }):argsort(1):narrow(1, 1, zeros)
  t:copy_(t:scatter(1, order, gb.zeros(zeros, columns, { dtype = t.dtype, device = t.device })))
end)
