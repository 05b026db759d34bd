-- functions.lua - functions of gb that are made of its ops: windows of signals, parts and products of tensors, indices
-- of triangles, differences, histograms of points, draws of counts, and draws that leave the stream as it was.
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
      fail(format("tensor_split: element %d of the list is %s; it is a whole number", i, native.shown(cut)))
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

-- {==== differences, histograms, numbers in two parts ====

-- The points of x along each of the dims: how far they are apart, a number or a vector of their places.
local function spacings(x, spacing, dims)
  local each = {}
  if type(spacing) ~= "table" then
    for i = 1, #dims do each[i] = spacing end
    return each
  end
  if #spacing ~= #dims then
    fail(format("gradient: spacing has %d entries for %d dimensions", #spacing, #dims))
  end
  for i, dim in ipairs(dims) do
    local one = spacing[i]
    if gb.is_tensor(one) then
      if one.ndim ~= 1 or one:numel() ~= x:size(dim) then
        fail(format("gradient: the places along dimension %d are a vector of %d, got [%s]", dim, x:size(dim),
          table.concat(one.shape, ", ")))
      end
    elseif type(one) ~= "number" then fail("gradient: spacing is a number, or a list of numbers or of vectors")
    end
    each[i] = one
  end
  return each
end

-- How far the points are from those before them: a vector [n - 1] in the place of dim, or a number.
local function steps_of(x, spacing, dim)
  if not gb.is_tensor(spacing) then return nil, spacing end
  local shape = {}
  for d = 1, x.ndim do shape[d] = d == dim and -1 or 1 end
  local dtype = x:is_floating_point() and x.dtype or gb.get_default_dtype()
  return spacing:to(dtype):diff():reshape(shape)
end

-- The derivative along one dim.
local function derivative(x, spacing, dim, order)
  local n = x:size(dim)
  local function at(first, count) return x:narrow(dim, first, count) end
  local steps, h = steps_of(x, spacing, dim)
  local function step(first, count) return steps and steps:narrow(dim, first, count) or h end
  local inner, left, right
  if steps then
    local a, b = step(1, n - 2), step(2, n - 2) -- to the left and to the right
    inner = (at(3, n - 2) * a * a - at(1, n - 2) * b * b + at(2, n - 2) * (b * b - a * a)) / (a * b * (a + b))
  else inner = (at(3, n - 2) - at(1, n - 2)) / (2 * h)
  end
  if order == 1 then
    left, right = (at(2, 1) - at(1, 1)) / step(1, 1), (at(n, 1) - at(n - 1, 1)) / step(n - 1, 1)
  else
    local a, b = step(1, 1), step(2, 1)
    left = at(1, 1) * (-(2 * a + b) / (a * (a + b))) + at(2, 1) * ((a + b) / (a * b)) - at(3, 1) * (a / (b * (a + b)))
    a, b = step(n - 2, 1), step(n - 1, 1)
    right = at(n - 2, 1) * (b / (a * (a + b))) - at(n - 1, 1) * ((a + b) / (a * b))
      + at(n, 1) * ((2 * b + a) / (b * (a + b)))
  end
  return gb.cat({ left, inner, right }, dim)
end

gb.gradient = define("gb.gradient(x: tensor; spacing: number|list = 1, dim?: dims, edge_order: int = 1) -> list: The \z
  derivatives of x along each dimension, or those of dim, by central differences, at both ends by differences of \z
  edge_order, 1 or 2. spacing: how far the points are apart, or a number or a vector of their places for each \z
  dimension. Errors: fewer than edge_order + 1 points, integers. Example: local d = gb.gradient(gb.tensor({ 1.0, 4, 9 \z
  }))[1]", "strict", function(x, o)
  local order, dims = o.edge_order, o.dim
  if order ~= 1 and order ~= 2 then fail(format("gradient: edge_order is %d; it is 1 or 2", order)) end
  if not x:is_floating_point() then fail(format("gradient: x is %s; convert it with x:float()", x.dtype)) end
  if not dims then
    dims = {}
    for d = 1, x.ndim do dims[d] = d end
  elseif type(dims) ~= "table" then dims = { dims }
  end
  local made, seen = {}, {}
  for i, dim in ipairs(dims) do
    local n = x:size(dim)
    dims[i] = dim < 0 and dim + x.ndim + 1 or dim
    if seen[dims[i]] then fail(format("gradient: dimension %d stands twice in dim", dims[i])) end
    seen[dims[i]] = true
    if n < order + 1 then
      fail(format("gradient: dimension %d has %d points; edge_order %d takes %d at least",
      dims[i], n, order, order + 1))
    end
  end
  for i, one in ipairs(spacings(x, o.spacing, dims)) do made[i] = derivative(x, one, dims[i], order) end
  return made
end)

gb.histogramdd = define("gb.histogramdd(x: tensor, bins: int|list; range?: list, weight?: tensor, density: bool = \z
  false) -> tensor, list: How many rows of x [..., n] lie in each cell of a grid over n dimensions, and the edges of \z
  its parts along each: bins equal parts of what x spans, or of range { low, high, low, high, ... }; or edges in a \z
  list of vectors. weight: what each row counts; density: as shares per volume that add up to 1. Errors: an empty \z
  range, no bins, integers. Example: local counts, edges = gb.histogramdd(gb.rand(9, 2), { 3, 4 })", "strict",
  function(x, bins, o)
    if x.ndim < 2 then fail(format("histogramdd: x has %d dimensions; it takes 2 at least", x.ndim)) end
    if not x:is_floating_point() then fail(format("histogramdd: x is %s; convert it with x:float()", x.dtype)) end
    local n, range, edges, shape, cells = x:size(-1), o.range, {}, {}, 1
    local rows = x:detach():reshape(-1, n)
    if type(bins) == "table" and #bins ~= n then fail(format("histogramdd: %d bins for %d dimensions", #bins, n)) end
    if range and #range ~= 2 * n then fail(format("histogramdd: range has %d numbers; it takes %d", #range, 2 * n)) end
    if n < 1 or n > 8 then fail(format("histogramdd: points of %d dimensions; it takes 1 .. 8", n)) end
    local at, inside = nil, nil
    for d = 1, n do
      local column, one = rows:select(2, d):contiguous(), type(bins) == "table" and bins[d] or bins
      local part = nil
      if range then
        part = { range[2 * d - 1], range[2 * d] }
        if type(part[1]) ~= "number" or type(part[2]) ~= "number" then
          fail("histogramdd: range is a list of numbers")
        end
      end
      if not gb.is_tensor(one) and math.type(one) ~= "integer" then
        fail("histogramdd: bins is a whole number, or a list of them or of vectors of edges")
      end
      local _, own = gb.histogram(column, one, { range = part })
      local count = own:numel() - 1
      local fits = column:ge(own[1]):logical_and(column:le(own[count + 1]))
      local place = (gb.searchsorted(own, column, { right = true }) - 1):clamp(0, count - 1)
      at = at and at * count + place or place
      inside = inside and inside:logical_and(fits) or fits
      edges[d], shape[d], cells = own, count, cells * count
      if cells > 1 << 30 then fail(format("histogramdd: the grid would have %d cells", cells)) end
    end
    local weight = o.weight
    if weight and weight:numel() ~= rows:size(1) then
      fail(format("histogramdd: weight has %d elements, x %d points", weight:numel(), rows:size(1)))
    end
    local counts = at:masked_select(inside):bincount(weight
      and weight:detach():reshape(-1):masked_select(inside) or nil, { minlength = cells }):to(x.dtype):reshape(shape)
    if o.density then
      counts = counts / counts:sum()
      for d = 1, n do
        local lengths = {}
        for k = 1, n do lengths[k] = k == d and -1 or 1 end
        counts = counts / edges[d]:diff():reshape(lengths)
      end
    end
    return counts, edges
  end)

-- ====}

-- {==== draws of counts ====

-- Uniform numbers in [0, 1) like x, a float64 tensor.
local function uniform_like(x) return gb.rand(x.shape, { dtype = "float64", device = x.device }) end

-- What is left to draw is asked after each round; false where nothing is.
local function any(left) return left:numel() > 0 and left:any():item() end

-- Draws for rates below 10: as many uniform numbers as it takes for their product to fall to e^-rate (Knuth).
local function few(rates, mine)
  local limit, product = gb.where(mine, (-rates):exp(), 2), gb.ones_like(rates)
  local count = gb.zeros_like(rates)
  while true do
    product = product * uniform_like(rates)
    local left = product:gt(limit)
    if not any(left) then return count end
    count = count + left:to("float64")
  end
end

-- Draws by transformed rejection: `hat` has the numbers a, b, v of the hat over the distribution, shift and scale,
-- log_share(k) the logarithm of its height at k against that of its middle, and `most` the largest draw (Hormann 1993).
local function many(mine, hat, log_share, most)
  local count, left = gb.zeros_like(hat.a), mine
  while any(left) do
    local u, v = uniform_like(hat.a) - 0.5, uniform_like(hat.a)
    local us = 0.5 - u:abs()
    local k = ((hat.a * 2 / us + hat.b) * u + hat.shift):floor()
    local fits = k:ge(0)
    if most then fits = fits:logical_and(k:le(most)) end
    local quick = us:ge(0.07):logical_and(v:le(hat.v))
    local slow = (v * hat.scale / (hat.a / (us * us) + hat.b)):log():le(log_share(k:clamp(0)))
    local taken = left:logical_and(fits):logical_and(quick:logical_or(slow))
    count = gb.where(taken, k, count)
    left = left:logical_and(taken:logical_not())
  end
  return count
end

gb.poisson = define("gb.poisson(rates: tensor) -> tensor: A draw of the Poisson distribution of each rate, in their \z
  dtype. Errors: integers; rates below 0 or not finite. Example: local counts = gb.poisson(gb.full({ 4 }, 3.5))",
  "strict", function(x)
    if not x:is_floating_point() then fail(format("poisson: the rates are %s; convert them with x:float()",
    x.dtype)) end
    local rates = x:detach():double()
    if rates:numel() == 0 then return x:detach():clone() end
    if not rates:ge(0):logical_and(rates:isfinite()):all():item() then
      fail("poisson: a rate is below 0 or not finite")
    end
    local large = rates:ge(10)
    local y = few(rates, large:logical_not())
    if any(large) then
      local rate = gb.where(large, rates, 10)
      local b = rate:sqrt() * 2.53 + 0.931
      local a = b * 0.02483 - 0.059
      local scale, logs = (b - 3.4):reciprocal() * 1.1328 + 1.1239, rate:log()
      y = gb.where(large, many(large, { a = a, b = b, v = (b - 2):reciprocal() * -3.6224 + 0.9277, shift = rate + 0.43,
        scale = scale }, function(k) return k * logs - rate - (k + 1):lgamma() end), y)
    end
    return y:to(x.dtype)
  end)

gb.binomial = define("gb.binomial(count: tensor, prob: tensor) -> tensor: A draw of the binomial distribution for \z
  each number of trials and probability, which broadcast, in the dtype of count. Errors: integers; a count below 0 or \z
  no whole number, a probability beyond 0 .. 1. Example: local n = gb.binomial(gb.full({ 3 }, 10.0), gb.full({ 3 }, \z
  0.5))",
  "strict", function(trials, prob)
    if not trials:is_floating_point() or not prob:is_floating_point() then
      fail(format("binomial: count is %s and prob %s; convert them with x:float()", trials.dtype, prob.dtype))
    end
    local count, p = gb.broadcast_tensors(trials:detach():double(), prob:detach():double())
    if count:numel() == 0 then return count:to(trials.dtype) end
    if not count:ge(0):logical_and(count:isfinite()):logical_and(count:eq(count:floor())):all():item() then
      fail("binomial: a count is below 0, or no whole number")
    end
    if not p:ge(0):logical_and(p:le(1)):all():item() then fail("binomial: a probability lies outside of 0 .. 1") end
    local turned = p:gt(0.5)
    local q = gb.where(turned, 1 - p, p)
    local large = (count * q):ge(10)
    -- the trials up to each success are added up until there are none left
    local y, sum = gb.zeros_like(count), gb.zeros_like(count)
    local odds, left = (-q):log1p(), large:logical_not():logical_and(q:gt(0))
    odds = gb.where(left, odds, -1)
    while any(left) do
      sum = sum + ((1 - uniform_like(count)):log() / odds):ceil():clamp(1)
      left = left:logical_and(sum:le(count))
      y = y + left:to("float64")
    end
    if any(large) then
      local n, share = gb.where(large, count, 40), gb.where(large, q, 0.5)
      local spread = (n * share * (1 - share)):sqrt()
      local b = spread * 2.53 + 1.15
      local a = b * 0.0248 - 0.0873 + share * 0.01
      local middle, logs = ((n + 1) * share):floor(), (share / (1 - share)):log()
      local top = (middle + 1):lgamma() + (n - middle + 1):lgamma()
      y = gb.where(large, many(large, { a = a, b = b, v = b:reciprocal() * -4.2 + 0.92, shift = n * share + 0.5,
        scale = (b:reciprocal() * 5.1 + 2.83) * spread }, function(k)
          k = gb.minimum(k, n)
          return top - (k + 1):lgamma() - (n - k + 1):lgamma() + (k - middle) * logs
        end, n), y)
    end
    return gb.where(turned, count - y, y):to(trials.dtype)
  end)

-- ====}
