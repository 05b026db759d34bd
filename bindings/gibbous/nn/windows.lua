-- nn/windows.lua - convolutions, transposed ones, and poolings, over one, two and three dimensions.
--
-- A kind of layer is made once for all of its dimensions. Padding that is not zeros is put around x before the
-- convolution, which then has none.

local gb, native = ...
local fail = native.fail
local layer, parameter, refuse = native.layer, native.empty_parameter, native.refuse_more
local nn = gb.nn
local F, init = nn.functional, nn.init
local type, ipairs, pairs, max, huge = type, ipairs, pairs, math.max, math.huge
local format, concat, unpack, sqrt, gsub = string.format, table.concat, table.unpack, math.sqrt, string.gsub

local COUNTS = { "one", "two", "three" }
local IMAGES = { "[n, %s, l]", "[n, %s, h, w]", "[n, %s, d, h, w]" }
local SAMPLES = { "gb.rand(2, 2, 8)", "gb.rand(2, 2, 8, 8)", "gb.rand(2, 2, 8, 8, 8)" }

-- A table that a module may keep.
local function kept(t) return setmetatable(t, {}) end

-- A size for each of so many dimensions.
local function sizes(value, dims, who, name)
  if type(value) == "number" then value = { value, dims > 1 and value or nil, dims > 2 and value or nil } end
  if #value ~= dims then
    fail(format("%s: %s is a number or a list of %s, got a list of %d", who, name, COUNTS[dims], #value))
  end
  for _, size in ipairs(value) do
    if size < 1 then fail(format("%s: %s must be a whole number from 1, got %d", who, name, size)) end
  end
  return kept { unpack(value) }
end

-- The record of a layer of so many dimensions: DIMS is that number, X what it reads, SAMPLE such a tensor.
local function record(text, dims, channels)
  local words = { DIMS = dims, X = format(IMAGES[dims], channels), SAMPLE = SAMPLES[dims] }
  return (gsub(text, "%u%u*", words))
end

-- {==== convolution ====

-- What padding of this mode reads, along a dimension of n elements, in the place of these positions (all from 0).
local PLACES = {
  reflect = function(at, n) return (n - 1) - ((n - 1) - at:abs()):abs() end,
  replicate = function(at, n) return at:clamp(0, n - 1) end,
  circular = function(at, n) return at % n end,
}
local MOST = { reflect = -1, replicate = huge, circular = 0 } -- padding may be at most n and this

-- x with padding of this mode around its last dimensions.
local function padded(self, x)
  local mode, dims = self.padding_mode, #self.kernel
  for i = 1, dims do
    local before, after = self.around[i][1], self.around[i][2]
    if before > 0 or after > 0 then
      local n = x:size(2 + i)
      local most = max(before, after)
      if most > n + MOST[mode] then
        fail(format("%s padding of %d does not fit dimension %d of x, which has %d elements", mode, most, 2 + i, n))
      end
      local at = gb.arange(-before, n + after, 1, { dtype = "int64", device = x.device })
      x = x:index_select(2 + i, PLACES[mode](at, n))
    end
  end
  return x
end

-- What a convolution pads at each end of each dimension.
local function around(padding, kernel, dilation)
  local list = kept {}
  for i, size in ipairs(kernel) do
    local each = type(padding) == "table" and (padding[i] or padding[1]) or padding
    local before, after = each, each
    if padding == "valid" then before, after = 0, 0 end
    if padding == "same" then
      local all = (type(dilation) == "table" and (dilation[i] or dilation[1]) or dilation) * (size - 1)
      before, after = all // 2, all - all // 2
    end
    list[i] = kept { before, after }
  end
  return list
end

-- Refuse groups that do not divide the channels.
local function check_groups(who, inputs, outputs, groups)
  if inputs % groups ~= 0 or outputs % groups ~= 0 then
    fail(format("%s: groups (%d) must divide the channels, %d in and %d out", who, groups, inputs, outputs))
  end
end

-- Fill weight and bias as PyTorch does: uniform, by what one element of the result sums.
local function reset(self, o, outputs, weight)
  local terms = 1
  for i = 2, weight.ndim do terms = terms * weight:size(i) end
  local bound = 1 / sqrt(terms)
  self.weight = nn.Parameter(weight)
  init.uniform_(self.weight, -bound, bound)
  if o.bias then self.bias = init.uniform_(parameter(o, outputs), -bound, bound) end
end

-- "3 -> 8, 5x5, relu, no bias".
local function extra_of(self, inputs, outputs)
  local text = format("%d -> %d, %s", inputs, outputs, concat(self.kernel, "x"))
  local activation, mode = self.options.activation or "none", self.padding_mode or "zeros"
  if activation ~= "none" then text = text .. ", " .. activation end
  if mode ~= "zeros" then text = text .. ", " .. mode end
  return text .. (self.bias and "" or ", no bias")
end

local function convolution(dims, op)
  local name = format("Conv%dd", dims)
  local class = layer(record("gb.nn.ConvDIMSd(inputs: size, outputs: size, kernel: ints; stride: ints = 1, \z
    padding: ints|\"same\"|\"valid\" = 0, dilation: ints = 1, groups: size = 1, bias: bool = true, \z
    padding_mode: \"zeros\"|\"reflect\"|\"replicate\"|\"circular\" = \"zeros\", \z
    activation: \"none\"|\"relu\" = \"none\", dtype?: dtype) -> module: DIMS-D convolution of x X. padding \"same\" \z
    keeps the size of x, with a stride of 1. Errors: groups that do not divide the channels. Example: \z
    local y = gb.nn.ConvDIMSd(2, 4, 3, { padding = 1 })(SAMPLE)", dims, "inputs"),
  function(self, inputs, outputs, kernel, o)
    self.in_channels, self.out_channels = inputs, outputs
    self.kernel = sizes(kernel, dims, name, "the kernel size")
    check_groups(name, inputs, outputs, o.groups)
    if o.padding == "same" then
      for _, stride in ipairs(type(o.stride) == "table" and o.stride or { o.stride }) do
        if stride ~= 1 then
          fail(format("%s: padding = 'same' keeps the size of x; stride is %d, it must be 1", name, stride))
        end
      end
    end
    local weight = gb.empty({ outputs, inputs // o.groups, unpack(self.kernel) }, { dtype = o.dtype })
    reset(self, o, outputs, dims == 2 and native.channels_last(weight) or weight)
    local zeros = o.padding_mode == "zeros"
    self.padding_mode, self.around = o.padding_mode, around(o.padding, self.kernel, o.dilation)
    self.options = kept { stride = o.stride, padding = zeros and o.padding or 0, dilation = o.dilation,
      groups = o.groups, activation = o.activation }
  end)
  function class:forward(x, more)
    if more ~= nil then refuse(self, "x") end
    if self.padding_mode ~= "zeros" then x = padded(self, x) end
    return op(x, self.weight, self.bias, self.options)
  end
  function class:extra()
    local shape = self.weight.shape
    return extra_of(self, shape[2] * self.options.groups, shape[1])
  end
end

local function transposed(dims, op)
  local name = format("ConvTranspose%dd", dims)
  local class = layer(record("gb.nn.ConvTransposeDIMSd(inputs: size, outputs: size, kernel: ints; stride: ints = 1, \z
    padding: ints = 0, output_padding: ints = 0, groups: size = 1, bias: bool = true, dilation: ints = 1, \z
    dtype?: dtype) -> module: DIMS-D transposed convolution of x X. Errors: groups that do not divide the \z
    channels. Example: \z
    local y = gb.nn.ConvTransposeDIMSd(2, 4, 2, { stride = 2 })(SAMPLE)", dims, "inputs"),
  function(self, inputs, outputs, kernel, o)
    self.in_channels, self.out_channels = inputs, outputs
    self.kernel = sizes(kernel, dims, name, "the kernel size")
    check_groups(name, inputs, outputs, o.groups)
    reset(self, o, outputs, gb.empty({ inputs, outputs // o.groups, unpack(self.kernel) }, { dtype = o.dtype }))
    self.options = kept { stride = o.stride, padding = o.padding, output_padding = o.output_padding, groups = o.groups,
      dilation = o.dilation }
  end)
  function class:forward(x, more)
    if more ~= nil then refuse(self, "x") end
    return op(x, self.weight, self.bias, self.options)
  end
  function class:extra()
    local shape = self.weight.shape
    return extra_of(self, shape[1], shape[2] * self.options.groups)
  end
end

for dims = 1, 3 do
  convolution(dims, F[format("conv%dd", dims)])
  transposed(dims, F[format("conv_transpose%dd", dims)])
end

-- ====}

-- {==== pooling ====

-- A layer whose options, other than the kernel, are those of its op.
local function pooling(dims, name, op, declared, text)
  local class = layer(record(format("gb.nn.%s(kernel: ints; stride?: ints, %s) -> module: %s of each window of x X; \z
    stride is kernel unless given. Example: local y = gb.nn.%s(2)(SAMPLE)", name, declared, text, name), dims, "c"),
  function(self, kernel, o)
    self.kernel = sizes(kernel, dims, name, "the kernel size")
    local options = kept {}
    for key, value in pairs(o) do options[key] = value end
    self.options = options
  end)
  function class:forward(x, more)
    if more ~= nil then refuse(self, "x") end
    return op(x, self.kernel, self.options)
  end
  function class:extra() return concat(self.kernel, "x") end
end

local function adaptive(dims, name, op, declared, text)
  local class = layer(record(format("gb.nn.%s(size: ints%s) -> module: %s over windows of x X chosen so that the \z
    result has this size. Example: local y = gb.nn.%s(1)(SAMPLE)", name, declared, text, name), dims, "c"),
  function(self, size, o)
    self.size = sizes(size, dims, name, "the size")
    self.options = kept { return_indices = o and o.return_indices }
  end)
  function class:forward(x, more)
    if more ~= nil then refuse(self, "x") end
    return op(x, self.size, self.options)
  end
  function class:extra() return concat(self.size, "x") end
end

local function norms(dims, name, op)
  local class = layer(record(format("gb.nn.%s(norm_type: number, kernel: ints; stride?: ints, ceil_mode: bool = \z
    false) -> module: The norm of each window of x X: the sum of x^norm_type to the power 1 / norm_type. Example: \z
    local y = gb.nn.%s(2, 2)(SAMPLE)", name, name), dims, "c"),
  function(self, norm_type, kernel, o)
    self.norm_type, self.kernel = norm_type, sizes(kernel, dims, name, "the kernel size")
    self.options = kept { stride = o.stride, ceil_mode = o.ceil_mode }
  end)
  function class:forward(x, more)
    if more ~= nil then refuse(self, "x") end
    return op(x, self.norm_type, self.kernel, self.options)
  end
  function class:extra() return format("%g, %s", self.norm_type, concat(self.kernel, "x")) end
end

local function unpooling(dims, name, op)
  local class = layer(record(format("gb.nn.%s(kernel: ints; stride?: ints, padding: ints = 0) -> module: Zeros with \z
    the elements of x X at the indices that MaxPoolDIMSd gave; called with x, indices and, where several sizes give \z
    x's, the size. Example: local y = gb.nn.%s(2)(F.max_poolDIMSd(SAMPLE, 2, { return_indices = true }))", name, name),
    dims, "c"),
  function(self, kernel, o)
    self.kernel = sizes(kernel, dims, name, "the kernel size")
    self.stride, self.padding = o.stride, o.padding
  end)
  function class:forward(x, indices, output_size, more)
    if more ~= nil then refuse(self, "x, indices and a size") end
    return op(x, indices, self.kernel, { stride = self.stride, padding = self.padding, output_size = output_size })
  end
  function class:extra() return concat(self.kernel, "x") end
end

for dims = 1, 3 do
  local function of(text) return format(text, dims) end
  pooling(dims, of "MaxPool%dd", F[of "max_pool%dd"], "padding: ints = 0, dilation: ints = 1, \z
    return_indices: bool = false, ceil_mode: bool = false", "The largest element")
  pooling(dims, of "AvgPool%dd", F[of "avg_pool%dd"], "padding: ints = 0, ceil_mode: bool = false, \z
    count_include_pad: bool = true" .. (dims > 1 and ", divisor_override?: size" or ""), "The mean")
  adaptive(dims, of "AdaptiveAvgPool%dd", F[of "adaptive_avg_pool%dd"], "", "Means")
  adaptive(dims, of "AdaptiveMaxPool%dd", F[of "adaptive_max_pool%dd"], "; return_indices: bool = false",
    "Largest elements")
  unpooling(dims, of "MaxUnpool%dd", F[of "max_unpool%dd"])
end
norms(1, "LPPool1d", F.lp_pool1d)
norms(2, "LPPool2d", F.lp_pool2d)
norms(3, "LPPool3d", F.lp_pool3d)

-- ====}
