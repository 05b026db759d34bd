-- nn/init.lua - initialisers, PyTorch's formulas. Each fills a tensor in place, without gradients, and returns it.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local init = {}
gb.nn.init = init

local function check_tensor(t, name)
  if not gb.is_tensor(t) then fail(("init.%s fills a tensor, got %s"):format(name, type(t))) end
end

local function check_gain(gain, name)
  if gain ~= nil and type(gain) ~= "number" then fail(("init.%s: the gain is a number, got %s"):format(name, type(gain))) end
  return gain or 1
end

-- Fan-in and fan-out of a weight [out, in, ...receptive field].
local function fans(t, name)
  check_tensor(t, name)
  local shape = t.shape
  if #shape < 2 then fail(("init.%s needs a tensor of at least 2 dimensions, this one has %d"):format(name, #shape)) end
  local field = 1
  for i = 3, #shape do field = field * shape[i] end
  return shape[2] * field, shape[1] * field
end

local gains = { linear = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4 }

-- gb.nn.init.calculate_gain(nonlinearity: string, slope?: number) -> number: The gain of an activation (LeCun's rule); leaky_relu takes its slope.
-- Errors: an activation without one. Example: print(gb.nn.init.calculate_gain("relu"))
function init.calculate_gain(nonlinearity, slope)
  if slope ~= nil and type(slope) ~= "number" then fail(("init: the slope of '%s' is a number, got %s"):format(tostring(nonlinearity), type(slope))) end
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + (slope or 0.01) ^ 2)) end
  return gains[nonlinearity] or fail(("init: no gain is known for '%s'"):format(nonlinearity))
end

local function in_no_grad(t, name, fn)
  check_tensor(t, name)
  gb.no_grad(fn)
  return t
end

-- gb.nn.init.uniform_(t: tensor, low?: number, high?: number) -> tensor: Uniform random numbers in [low, high), 0 and 1 unless given. Example:
-- gb.nn.init.uniform_(x)
function init.uniform_(t, low, high) return in_no_grad(t, "uniform_", function() t:uniform_(low or 0, high or 1) end) end
-- gb.nn.init.normal_(t: tensor, mean?: number, std?: number) -> tensor: Normal random numbers, of mean 0 and deviation 1 unless given. Example:
-- gb.nn.init.normal_(x, 0, 0.02)
function init.normal_(t, mean, std) return in_no_grad(t, "normal_", function() t:normal_(mean or 0, std or 1) end) end
-- gb.nn.init.constant_(t: tensor, value: number) -> tensor: Every element becomes value. Example: gb.nn.init.constant_(x, 0.5)
function init.constant_(t, value) return in_no_grad(t, "constant_", function() t:fill_(value) end) end
-- gb.nn.init.zeros_(t: tensor) -> tensor: Every element becomes 0. Example: gb.nn.init.zeros_(x)
function init.zeros_(t) return init.constant_(t, 0) end
-- gb.nn.init.ones_(t: tensor) -> tensor: Every element becomes 1. Example: gb.nn.init.ones_(x)
function init.ones_(t) return init.constant_(t, 1) end

-- gb.nn.init.trunc_normal_(t: tensor, mean?: number, std?: number, low?: number, high?: number) -> tensor: Normal random numbers within [low, high],
-- -2 and 2 unless given: those outside are drawn again. Example: gb.nn.init.trunc_normal_(x)
function init.trunc_normal_(t, mean, std, low, high)
  mean, std, low, high = mean or 0, std or 1, low or -2, high or 2
  return in_no_grad(t, "trunc_normal_", function()
    t:normal_(mean, std)
    for _ = 1, 100 do
      local outside = t:lt(low):logical_or(t:gt(high))
      if not outside:any():item() then return end
      t:copy_(gb.where(outside, gb.randn(t.shape, { dtype = t.dtype }):mul(std):add(mean), t))
    end
    t:clamp_(low, high)
  end)
end

-- gb.nn.init.xavier_uniform_(t: tensor, gain?: number) -> tensor: Glorot, Bengio 2010: uniform, with variance 2 / (fan_in + fan_out). Errors: fewer
-- than 2 dimensions. Example: gb.nn.init.xavier_uniform_(x)
function init.xavier_uniform_(t, gain)
  local fan_in, fan_out = fans(t, "xavier_uniform_")
  local bound = check_gain(gain, "xavier_uniform_") * math.sqrt(6 / (fan_in + fan_out))
  return init.uniform_(t, -bound, bound)
end

-- gb.nn.init.xavier_normal_(t: tensor, gain?: number) -> tensor: Glorot, Bengio 2010: normal, with variance 2 / (fan_in + fan_out). Errors: fewer
-- than 2 dimensions. Example: gb.nn.init.xavier_normal_(x)
function init.xavier_normal_(t, gain)
  local fan_in, fan_out = fans(t, "xavier_normal_")
  return init.normal_(t, 0, check_gain(gain, "xavier_normal_") * math.sqrt(2 / (fan_in + fan_out)))
end

-- He et al. 2015: standard deviation gain / sqrt(fan). options: a (slope), mode ("fan_in" or "fan_out"), nonlinearity.
local function kaiming_std(t, options, name)
  options = options or {}
  if type(options) ~= "table" then fail(("init.%s takes its options in a table, got %s"):format(name, type(options))) end
  local fan_in, fan_out = fans(t, name)
  local gain = init.calculate_gain(options.nonlinearity or "leaky_relu", options.a or 0)
  return gain / math.sqrt(options.mode == "fan_out" and fan_out or fan_in)
end

-- gb.nn.init.kaiming_uniform_(t: tensor, options?: table) -> tensor: He et al. 2015: uniform, with standard deviation gain / sqrt(fan). options: a
-- (slope), mode ("fan_in" or "fan_out"), nonlinearity. Errors: fewer than 2 dimensions. Example: gb.nn.init.kaiming_uniform_(x, { nonlinearity =
-- "relu" })
function init.kaiming_uniform_(t, options)
  local bound = math.sqrt(3) * kaiming_std(t, options, "kaiming_uniform_")
  return init.uniform_(t, -bound, bound)
end

-- gb.nn.init.kaiming_normal_(t: tensor, options?: table) -> tensor: He et al. 2015: normal, with standard deviation gain / sqrt(fan); options as
-- kaiming_uniform_'s. Errors: fewer than 2 dimensions. Example: gb.nn.init.kaiming_normal_(x)
function init.kaiming_normal_(t, options)
  return init.normal_(t, 0, kaiming_std(t, options, "kaiming_normal_"))
end

-- gb.nn.init.orthogonal_(t: tensor, gain?: number) -> tensor: Orthonormal rows or columns (Saxe et al. 2013), by Gram-Schmidt done twice, which is
-- orthogonal to rounding. Errors: fewer than 2 dimensions. Example: gb.nn.init.orthogonal_(x)
function init.orthogonal_(t, gain)
  check_tensor(t, "orthogonal_")
  local shape = t.shape
  if #shape < 2 then fail(("init.orthogonal_ needs a tensor of at least 2 dimensions, this one has %d"):format(#shape)) end
  gain = check_gain(gain, "orthogonal_")
  if t:numel() == 0 then return t end
  local rows, columns = shape[1], t:numel() // shape[1]
  local wide = rows < columns
  local n, m = wide and columns or rows, wide and rows or columns
  return in_no_grad(t, "orthogonal_", function()
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
    t:copy_((wide and basis or basis:t()):mul(gain):reshape(table.unpack(shape)))
  end)
end
