-- functions.lua - functions of gb that are made of its ops: windows of signals, parts and products of tensors, indices
-- of triangles, and draws that leave the stream as it was.
--
-- Windows are computed in float64 and rounded once, whatever their dtype.

local gb, native = ...
local define, fail = native.define, native.fail -- fail raises with the recipe's line
local format, pi = string.format, math.pi

-- {==== windows ====

-- What a window of more than one sample is made of: places 0 .. 1, as float64, a whole period or up to its last sample.
local function window(name, formula)
  return function(n, periodic, first, second, options)
    if n < 0 then fail(format("%s: window_length is %d; it is 0 or more", name, n)) end
    local steps = periodic and n or n - 1
    local made = { dtype = "float64", device = options.device }
    local y = n == 1 and gb.ones(1, made) or formula(gb.arange(0, n, 1, made) / steps, first, second)
    y = y:to(options.dtype or gb.get_default_dtype())
    if options.requires_grad then y:requires_grad_() end
    return y
  end
end

-- a - b cos(2 pi t).
local function raised(t, a, b) return (t * (2 * pi)):cos() * -b + a end

local hann = window("hann_window", function(t) return raised(t, 0.5, 0.5) end)
local hamming = window("hamming_window", raised)
local blackman = window("blackman_window", function(t) return raised(t, 0.42, 0.5) + (t * (4 * pi)):cos() * 0.08 end)
local bartlett = window("bartlett_window", function(t) return 1 - (t * 2 - 1):abs() end)
local kaiser = window("kaiser_window", function(t, beta)
  local inside = (1 - (t * 2 - 1):square()):clamp(0)
  return (inside:sqrt() * beta):i0() / gb.tensor(beta, { dtype = "float64", device = t.device }):i0()
end)

gb.hann_window = define("gb.hann_window(window_length: int, periodic: bool = true; dtype?: dtype, device?: device, \z
  requires_grad: bool = false) -> tensor: 0.5 - 0.5 cos(2 pi i / n): a window for stft. periodic: n is the length, \z
  so that windows follow one another; else 1 less, and the window is symmetric. Example: local y = \z
  gb.randn(1000):stft(64, 16, 64, gb.hann_window(64))", "strict",
  function(n, periodic, options) return hann(n, periodic, nil, nil, options) end)

gb.hamming_window = define("gb.hamming_window(window_length: int, periodic: bool = true, alpha: number = 0.54, \z
  beta: number = 0.46; dtype?: dtype, device?: device, requires_grad: bool = false) -> tensor: alpha - beta cos(2 \z
  pi i / n), n as for hann_window. Example: local window = gb.hamming_window(64)", "strict", hamming)

gb.blackman_window = define("gb.blackman_window(window_length: int, periodic: bool = true; dtype?: dtype, device?: \z
  device, requires_grad: bool = false) -> tensor: 0.42 - 0.5 cos(2 pi i / n) + 0.08 cos(4 pi i / n), n as for \z
  hann_window. Example: local window = gb.blackman_window(64)", "strict",
  function(n, periodic, options) return blackman(n, periodic, nil, nil, options) end)

gb.bartlett_window = define("gb.bartlett_window(window_length: int, periodic: bool = true; dtype?: dtype, device?: \z
  device, requires_grad: bool = false) -> tensor: From 0 up to 1 in the middle and down again, in straight lines. \z
  Example: local window = gb.bartlett_window(64)", "strict",
  function(n, periodic, options) return bartlett(n, periodic, nil, nil, options) end)

gb.kaiser_window = define("gb.kaiser_window(window_length: int, periodic: bool = true, beta: number = 12; dtype?: \z
  dtype, device?: device, requires_grad: bool = false) -> tensor: Kaiser's window: i0(beta sqrt(1 - t^2)) / \z
  i0(beta), t from -1 to 1. Example: local window = gb.kaiser_window(64)", "strict",
  function(n, periodic, beta, options) return kaiser(n, periodic, beta, nil, options) end)

-- ====}

-- {==== parts ====

gb.split = define("gb.split(x: tensor, length: int|list, dim: dim = 1) -> list: Views of length positions along \z
  dim, the last perhaps shorter; or of the lengths in a list. Errors: lengths that do not add up to the dimension. \z
  Example: local parts = gb.split(gb.rand(5, 2), { 2, 3 })", "strict",
  function(x, length, dim) return x:split(length, dim) end)

gb.chunk = define("gb.chunk(x: tensor, chunks: int, dim: dim = 1) -> list: At most this many views of equal length \z
  along dim, the last one perhaps shorter. Example: local halves = gb.chunk(gb.rand(4, 2), 2)", "strict",
  function(x, chunks, dim) return x:chunk(chunks, dim) end)

gb.unbind = define("gb.unbind(x: tensor, dim: dim = 1) -> list: The views at each position along dim. Example: \z
  local rows = gb.unbind(gb.rand(3, 2))", "strict", function(x, dim) return x:unbind(dim) end)

-- Views of x along dim between cuts, which are how many positions lie before each.
local function between(x, cuts, dim)
  local n, lengths, last = x:size(dim), {}, 0
  for i = 1, #cuts do
    local cut = cuts[i]
    if math.type(cut) ~= "integer" then
      fail(format("tensor_split: element %d of the list is %s; it is a whole number", i, tostring(cut)))
    end
    if cut < 0 then cut = cut + n end
    cut = math.max(0, math.min(cut, n))
    if cut < last then
      fail(format("tensor_split: the places to cut at must go up, and element %d of the list lies before the one in \z
        front of it", i))
    end
    lengths[i], last = cut - last, cut
  end
  lengths[#lengths + 1] = n - last
  return x:split(lengths, dim)
end

gb.tensor_split = define("gb.tensor_split(x: tensor, parts: int|list, dim: dim = 1) -> list: So many views along \z
  dim, of lengths that differ by 1 at most; or cut where a list says, by how many positions lie before each cut. \z
  Errors: no parts, cuts that do not go up. Example: local parts = gb.tensor_split(gb.arange(7), 3)", "strict",
  function(x, parts, dim)
    if type(parts) == "table" then return between(x, parts, dim) end
    if parts < 1 then fail(format("tensor_split: parts is %d; it is 1 or more", parts)) end
    local n, lengths = x:size(dim), {}
    if parts > n + 4096 then
      fail(format("tensor_split: %d parts of %d positions would nearly all be empty", parts, n))
    end
    for i = 1, parts do lengths[i] = n // parts + (i <= n % parts and 1 or 0) end
    return x:split(lengths, dim)
  end)

-- ====}

-- tensor_split along dim, or along another one of tensors of fewer than `least` dimensions.
local function split_along(name, dim, least)
  return function(x, parts)
    if x.ndim < least then
      fail(format("%s: x has %d dimensions; it takes %d at least", name, x.ndim, least))
    end
    return gb.tensor_split(x, parts, x.ndim < dim and 1 or dim)
  end
end

gb.hsplit = define("gb.hsplit(x: tensor, parts: int|list) -> list: tensor_split along the second dimension, of a \z
  vector along its only one. Example: local parts = gb.hsplit(gb.rand(2, 4), 2)", "strict",
  split_along("hsplit", 2, 1))

gb.vsplit = define("gb.vsplit(x: tensor, parts: int|list) -> list: tensor_split along the first dimension. Errors: a \z
  vector. Example: local parts = gb.vsplit(gb.rand(4, 2), 2)", "strict", split_along("vsplit", 1, 2))

gb.dsplit = define("gb.dsplit(x: tensor, parts: int|list) -> list: tensor_split along the third dimension. Errors: \z
  fewer dimensions. Example: local parts = gb.dsplit(gb.rand(2, 2, 4), 2)", "strict", split_along("dsplit", 3, 3))

gb.broadcast_tensors = define("gb.broadcast_tensors(xs...: tensor) -> tensor, any: Each tensor expanded to the shape \z
  that all broadcast to, as views. Errors: shapes that do not fit. Example: \z
  local x, y = gb.broadcast_tensors(gb.ones(3, 1), gb.ones(4))", "strict", function(...)
  local xs, shape = { ... }, {}
  for _, x in ipairs(xs) do
    local sizes = x.shape
    for d = 1, #sizes do -- from the last dimension on
      local n, known = sizes[#sizes + 1 - d], shape[d] or 1
      if known ~= 1 and n ~= 1 and known ~= n then
        fail(format("broadcast_tensors: sizes %d and %d of dimension %d from the end do not fit", known, n, d))
      end
      shape[d] = known == 1 and n or known
    end
  end
  local whole = {}
  for d = 1, #shape do whole[d] = shape[#shape + 1 - d] end
  for i, x in ipairs(xs) do xs[i] = x:expand(whole) end
  return table.unpack(xs)
end)

-- ====}

-- {==== products and powers ====

gb.cartesian_prod = define("gb.cartesian_prod(xs...: tensor) -> tensor: All combinations of the elements of \z
  vectors, a row each, the last vector's changing first; of one vector the vector. Errors: tensors that are no \z
  vectors. Example: local rows = gb.cartesian_prod(gb.arange(2), gb.arange(3))", "strict", function(...)
  local xs = { ... }
  if #xs == 0 then fail("cartesian_prod: it takes one vector at least") end
  for i, x in ipairs(xs) do
    if x.ndim ~= 1 then fail(format("cartesian_prod: argument %d has %d dimensions; it is a vector", i, x.ndim)) end
  end
  if #xs == 1 then return xs[1]:clone() end
  local grids = { gb.meshgrid(table.unpack(xs)) }
  for i, grid in ipairs(grids) do grids[i] = grid:reshape(-1) end
  return gb.stack(grids, 2)
end)

gb.combinations = define("gb.combinations(x: tensor, r: int = 2; with_replacement: bool = false) -> tensor: All \z
  ways to take r elements of a vector, a row each, in the vector's order; with_replacement: each as often as one \z
  likes. It looks at all #x^r rows. Errors: an r below 0 or above 7. Example: local pairs = \z
  gb.combinations(gb.arange(4))",
  "strict", function(x, r, options)
    if x.ndim ~= 1 then fail(format("combinations: x has %d dimensions; it is a vector", x.ndim)) end
    if r < 0 or r > 7 then fail(format("combinations: r is %d; it is 0 .. 7", r)) end
    if r == 0 then return x:new_empty(0) end
    if r == 1 then return x:unsqueeze(2):clone() end
    local line, lines = gb.arange(0, x:numel(), 1, { device = x.device }), {}
    for i = 1, r do lines[i] = line end
    local grids, fits = { gb.meshgrid(table.unpack(lines)) }, nil
    for i = 2, r do
      local up = options.with_replacement and grids[i - 1]:le(grids[i]) or grids[i - 1]:lt(grids[i])
      fits = fits and fits:logical_and(up) or up
    end
    for i = 1, r do grids[i] = x:index_select(1, grids[i]:masked_select(fits)) end
    return gb.stack(grids, 2)
  end)

gb.vander = define("gb.vander(x: tensor, N?: int; increasing: bool = false) -> tensor: The powers of a vector's \z
  elements, a row each: N of them, as many as x has unless given, the highest first or with increasing the lowest. \z
  Errors: an N below 0. Example: local y = gb.vander(gb.tensor({ 1.0, 2, 3 }))", "strict", function(x, N, options)
  if x.ndim ~= 1 then fail(format("vander: x has %d dimensions; it is a vector", x.ndim)) end
  local n = N or x:numel()
  if n < 0 then fail(format("vander: N is %d; it is 0 or more", n)) end
  if n == 0 then return x:new_empty(x:numel(), 0) end
  local ones = x:new_ones(x:numel(), 1)
  local y = n == 1 and ones or gb.cat({ ones, x:unsqueeze(2):expand(-1, n - 1) }, 2):cumprod(2)
  return options.increasing and y or y:flip(2)
end)

gb.float_power = define("gb.float_power(x: tensor, exponent: tensor|number) -> tensor: x to the power exponent, \z
  computed and kept in float64. Example: local y = gb.float_power(gb.arange(3), 0.5)", "strict",
  function(x, exponent) return x:double():pow(gb.is_tensor(exponent) and exponent:double() or exponent) end)

gb.rsub = define("gb.rsub(x: tensor, y: tensor|number; alpha: number = 1) -> tensor: y - alpha x. Example: \z
  local z = gb.rsub(gb.ones(2), 3)", "strict",
  function(x, y, options) return gb.sub(y, options.alpha == 1 and x or x * options.alpha) end)

gb.cumulative_trapezoid = define("gb.cumulative_trapezoid(y: tensor, x?: tensor; dx: number = 1, dim: dim = -1) -> \z
  tensor: The areas below y from the first position along dim up to each other one, by the trapezoidal rule: at the \z
  points x, or dx apart. Errors: an x that does not fit. Example: \z
  local areas = gb.cumulative_trapezoid(gb.tensor({ 1.0, 2, 3 }))", "strict", function(y, x, options)
  local dim, n = options.dim, y:size(options.dim)
  if n == 0 then fail("cumulative_trapezoid: y has no positions along dim") end
  local sums = y:narrow(dim, 2, n - 1) + y:narrow(dim, 1, n - 1)
  if not x then return (sums * (options.dx / 2)):cumsum(dim) end
  if x.ndim == 1 and y.ndim > 1 then
    local shape = {}
    for d = 1, y.ndim do shape[d] = 1 end
    shape[dim < 0 and dim + y.ndim + 1 or dim] = x:numel()
    x = x:reshape(shape)
  end
  if x.ndim ~= y.ndim or x:size(dim) ~= n then
    fail(format("cumulative_trapezoid: y has %d positions along dim; x needs as many, or a vector of them", n))
  end
  return (sums * (x:narrow(dim, 2, n - 1) - x:narrow(dim, 1, n - 1)) / 2):cumsum(dim)
end)

gb.logspace = define("gb.logspace(first: number, last: number, steps: int, base: number = 10; dtype?: dtype, \z
  device?: device, requires_grad: bool = false) -> tensor: base to the powers first .. last, steps of them evenly \z
  spaced. Example: local x = gb.logspace(0, 3, 4)", "strict", function(first, last, steps, base, options)
  if steps < 0 then fail(format("logspace: steps is %d; it is 0 or more", steps)) end
  local powers = gb.linspace(first, last, steps, { dtype = "float64", device = options.device })
  local y = gb.pow(base, powers):to(options.dtype or gb.get_default_dtype())
  if options.requires_grad then y:requires_grad_() end
  return y
end)

-- ====}

-- {==== diagonals and triangles ====

-- Where a triangle of ones lies in a matrix.
local function triangle(name, cut)
  return function(rows, columns, offset, options)
    if rows < 0 or columns < 0 then
      fail(format("%s: %d rows and %d columns; there are 0 or more", name, rows, columns))
    end
    local ones = gb.ones(rows, columns, { dtype = "uint8", device = options.device })
    local dtype = options.dtype or "int64"
    return gb[cut](ones, offset):nonzero():t():to(dtype):contiguous()
  end
end

gb.tril_indices = define("gb.tril_indices(row: int, col: int, offset: int = 0; dtype?: dtype, device?: device) -> \z
  tensor: Where the lower triangle of a matrix lies, up to the diagonal that is offset above the main one: [2, \z
  count], rows and columns from 0. Example: local at = gb.tril_indices(3, 3)", "strict",
  triangle("tril_indices", "tril"))

gb.triu_indices = define("gb.triu_indices(row: int, col: int, offset: int = 0; dtype?: dtype, device?: device) -> \z
  tensor: The same of the upper triangle, from the diagonal on that is offset above the main one. Example: local at \z
  = gb.triu_indices(3, 3, 1)", "strict", triangle("triu_indices", "triu"))

gb.trace = define("gb.trace(x: tensor) -> tensor: The sum of a matrix's diagonal. Errors: no matrix. Example: \z
  print(gb.trace(gb.eye(3)))", "strict", function(x)
  if x.ndim ~= 2 then fail(format("trace: x has %d dimensions; it is a matrix", x.ndim)) end
  return x:diagonal():sum()
end)

gb.diagflat = define("gb.diagflat(x: tensor, offset: int = 0) -> tensor: A matrix with all elements of x on a \z
  diagonal, offset above the main one. Example: local y = gb.diagflat(gb.ones(2, 2))", "strict",
  function(x, offset) return x:reshape(-1):diag(offset) end)

gb.unravel_index = define("gb.unravel_index(index: tensor, shape: shape) -> tensor, any: For places in a tensor of \z
  that shape as if it were a vector (from 0), the index along each dimension (from 0), a tensor each. Errors: floats. \z
  Example: local rows, columns = gb.unravel_index(gb.tensor({ 5 }), { 2, 3 })", "strict", function(index, shape)
  if index:is_floating_point() or index.dtype == "bool" then
    fail(format("unravel_index: index is %s; it holds integers", index.dtype))
  end
  local found, rest = {}, index:long()
  for d = #shape, 1, -1 do
    if shape[d] < 1 then fail("unravel_index: a shape of no elements has no places") end
    found[d], rest = rest % shape[d], rest:floor_divide(shape[d])
  end
  return table.unpack(found)
end)

-- ====}

-- {==== comparisons ====

gb.equal = define("gb.equal(x: tensor, y: tensor) -> boolean: Do both have the same shape and equal elements? NaN \z
  equals nothing. Errors: two devices. Example: print(gb.equal(gb.ones(2), gb.ones(2)))", "strict", function(x, y)
  if x.ndim ~= y.ndim then return false end
  for d = 1, x.ndim do
    if x:size(d) ~= y:size(d) then return false end
  end
  return x:eq(y):all():item()
end)

-- ====}

-- {==== random numbers ====

-- What a recipe puts in their places is not asked.
local get_state, set_state = gb.get_rng_state, gb.set_rng_state

gb.random.fork = define("gb.random.fork(fn: function, arguments...: any) -> any: Run fn(...) and put the random \z
  stream back where it was, whatever fn draws on any device, seeds, or raises. Returns what fn returns. Example: \z
  local noise = gb.random.fork(function() gb.manual_seed(1) return gb.randn(2) end)", "strict", function(fn, ...)
  local state = get_state()
  local _ <close> = setmetatable({}, { __close = function() set_state(state) end })
  return (function(...) return ... end)(fn(...))
end)

-- ====}
