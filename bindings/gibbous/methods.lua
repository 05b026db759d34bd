-- methods.lua - methods of tensors that are made of its ops: parts, conversions, draws in place, and functions of
-- matrices; those that PyTorch has as functions too stand in gb as well.

local gb, native = ...
local define, fail = native.define, native.fail -- fail raises with the recipe's line
local format, match, pi = string.format, string.match, math.pi
local methods = native.methods("gibbous.tensor")

-- A method, by its record.
local function method(text, fn) methods[match(text, "^tensor:([%w_]+)")] = define(text, "strict", fn) end

-- The same as a method and as a function of gb. arguments: the record's text from the first argument behind x on.
local function both(name, arguments, doc, call, fn)
  local first = match(arguments, "^[;)]") and "x: tensor" or "x: tensor, "
  method(format("tensor:%s(%s%s Example: %s", name, arguments, doc, call.method), fn)
  gb[name] = define(format("gb.%s(%s%s%s Example: %s", name, first, arguments, doc, call.func), "strict", fn)
end

-- What a result is computed of that goes over x: the graph may keep it, and must not see it change.
local function source(x) return x.requires_grad and gb.is_grad_enabled() and x:clone() or x end

-- Write y over x, in the name of a method.
local function write(name, x, y)
  if x.requires_grad and x.is_leaf and gb.is_grad_enabled() then
    fail(format("%s: a leaf that requires gradients is changed in place; do it under no_grad, or on a clone", name))
  end
  if table.concat(x.shape, ", ") ~= table.concat(y.shape, ", ") then
    fail(format("%s: the result would be [%s], and the tensor is [%s]", name, table.concat(y.shape, ", "),
      table.concat(x.shape, ", ")))
  end
  if y:is_floating_point() and not x:is_floating_point() then
    fail(format("%s: in place, a result of %s cannot be stored in a tensor of %s; call it on x:to('%s')", name, y.dtype,
      x.dtype, y.dtype))
  end
  return x:copy_(y)
end

-- {==== parts ====

for _, name in ipairs { "hsplit", "vsplit", "dsplit" } do
  method(format("tensor:%s(parts: int|list) -> list: As gb.%s. Example: local parts = gb.rand(2, 2, 2):%s(2)", name,
    name, name), gb[name])
end
method("tensor:tensor_split(parts: int|list, dim: dim = 1) -> list: As gb.tensor_split. Example: local parts = \z
  gb.arange(7):tensor_split(3)", gb.tensor_split)

both("split_with_sizes", "sizes: list, dim: dim = 1)", " -> list: Views of these lengths along dim. Errors: lengths \z
  that do not add up to the dimension.", { method = "local parts = gb.rand(5, 2):split_with_sizes({ 2, 3 })",
  func = "local parts = gb.split_with_sizes(gb.rand(5, 2), { 2, 3 })" },
  function(x, sizes, dim) return x:split(sizes, dim) end)

method("tensor:trace() -> tensor: The sum of a matrix's diagonal. Errors: no matrix. Example: \z
  print(gb.eye(3):trace())", gb.trace)
method("tensor:diagflat(offset: int = 0) -> tensor: A matrix with all elements on a diagonal, offset above the main \z
  one. Example: local y = gb.ones(2, 2):diagflat()", gb.diagflat)

method("tensor:sum_to_size(sizes: shape) -> tensor: The sum over the dimensions along which a tensor of these sizes \z
  would be broadcast to this one. Errors: sizes that do not broadcast to it. Example: local y = \z
  gb.ones(3, 4):sum_to_size({ 1, 4 })", function(x, sizes)
  local extra, dims = x.ndim - #sizes, {}
  if extra < 0 then fail(format("sum_to_size: %d sizes for %d dimensions", #sizes, x.ndim)) end
  for d = 1, x.ndim do
    local own, wanted = x:size(d), d > extra and sizes[d - extra] or 1
    if wanted ~= own and wanted ~= 1 then
      fail(format("sum_to_size: dimension %d has %d positions, and %d does not broadcast to it", d, own, wanted))
    end
    if wanted ~= own or d <= extra then dims[#dims + 1] = d end
  end
  if #dims > 0 then x = x:sum(dims, { keepdim = true }) end
  return x:reshape(sizes)
end)

both("nonzero_static", "; size: int, fill_value: int = -1)", " -> tensor: The first `size` rows of nonzero(), and \z
  rows of fill_value where there are fewer. Errors: a size below 0.",
  { method = "local at = gb.tensor({ 0.0, 3.0 }):nonzero_static { size = 2 }",
    func = "local at = gb.nonzero_static(gb.tensor({ 0.0, 3.0 }), { size = 2 })" }, function(x, options)
    if options.size < 0 then fail(format("nonzero_static: size is %d; it is 0 or more", options.size)) end
    local at = x:nonzero()
    local n = math.min(at:size(1), options.size)
    local rest = gb.full({ options.size - n, at:size(2) }, options.fill_value, { dtype = "int64", device = x.device })
    return gb.cat({ at:narrow(1, 1, n), rest }, 1)
  end)

-- ====}

-- {==== conversions ====

for name, dtype in pairs { byte = "uint8", char = "int8", short = "int16" } do
  method(format("tensor:%s() -> tensor: In %s. Example: local y = gb.ones(2):%s()", name, dtype, name),
    function(x) return x:to(dtype) end)
end

both("is_signed", ")", " -> bool: Can its dtype hold numbers below 0?",
  { method = "print(gb.ones(2):is_signed())", func = "print(gb.is_signed(gb.ones(2)))" },
  function(x) return x.dtype ~= "uint8" and x.dtype ~= "bool" end)

method("tensor:equal(y: tensor) -> boolean: Do both have the same shape and equal elements? NaN equals nothing. \z
  Example: print(gb.ones(2):equal(gb.ones(2)))", gb.equal)

-- ====}

-- {==== arithmetic ====

method("tensor:float_power(exponent: tensor|number) -> tensor: x to the power exponent, computed and kept in float64. \z
  Example: local y = gb.arange(3):float_power(0.5)", gb.float_power)
method("tensor:float_power_(exponent: tensor|number) -> tensor: The same in place, of a float64 tensor. Errors: \z
  another dtype. Example: local y = gb.ones(2):double():float_power_(2)", function(x, exponent)
  if x.dtype ~= "float64" then fail(format("float_power_: the result is float64, the tensor %s", x.dtype)) end
  return x:pow_(gb.is_tensor(exponent) and exponent:double() or exponent)
end)

-- A few more than the binary digits between the least and the largest number of a dtype.
local digits = { float64 = 2200, float32 = 300, bfloat16 = 300, float16 = 60 }

-- x * 2^y; in four parts, so that the power itself neither overflows nor vanishes before the product does.
local function ldexp(x, y)
  local dtype = x:is_floating_point() and x.dtype or gb.get_default_dtype()
  local power = gb.is_tensor(y) and y or gb.tensor(y, { dtype = dtype, device = x.device })
  if not power:is_floating_point() then power = power:to(dtype) end
  local most = math.max(digits[dtype], digits[power.dtype])
  power = power:clamp(-most, most)
  local part = (power / 4):floor()
  local factor = part:exp2()
  return x * factor * factor * factor * (power - part * 3):exp2()
end
both("ldexp", "y: tensor|number)", " -> tensor: x * 2^y.", { method = "local y = gb.ones(2):ldexp(3)",
  func = "local y = gb.ldexp(gb.ones(2), gb.tensor({ 3, 4 }))" }, ldexp)
method("tensor:ldexp_(y: tensor|number) -> tensor: x * 2^y, in place. Example: local y = gb.ones(2):ldexp_(3)",
  function(x, y) return write("ldexp_", x, ldexp(source(x), y)) end)

-- The exponent of the largest power of 2 that is not above |x|, plus 1, as floats without a gradient: of 0 and of what
-- is not finite 0. The logarithm may be one off, which the quotient shows.
local function exponent_of(x)
  local size = x:detach():abs()
  local plain = size:isfinite():logical_and(size:gt(0))
  size = gb.where(plain, size, 0.5)
  local e = size:log2():floor() + 1
  for _ = 1, 2 do
    local part = ldexp(size, -e)
    e = e + part:ge(1):to(e.dtype) - part:lt(0.5):to(e.dtype)
  end
  return gb.where(plain, e, 0)
end

both("frexp", ")", " -> tensor, tensor: y and n of which x is y * 2^n, |y| from 0.5 up to 1, n as int32; of 0 and of \z
  what is not finite x and 0. Errors: integers.", { method = "local y, n = gb.tensor({ 6.0 }):frexp()",
  func = "local y, n = gb.frexp(gb.tensor({ 6.0 }))" }, function(x)
    if not x:is_floating_point() then fail(format("frexp: x is %s; convert it with x:float()", x.dtype)) end
    local wide = x.dtype == "float64" and x or x:float()
    local e = exponent_of(wide)
    return ldexp(wide, -e):to(x.dtype), e:to("int32")
  end)

-- log(pi) p (p - 1) / 4, and the sum of lgamma(x - j / 2).
local function mvlgamma(x, p)
  if p < 1 or p > 4096 then fail(format("mvlgamma: p is %d; it is 1 .. 4096", p)) end
  local y = x:lgamma()
  for j = 1, p - 1 do y = y + (x - j / 2):lgamma() end
  return y + p * (p - 1) / 4 * math.log(pi)
end
both("mvlgamma", "p: int)", " -> tensor: The logarithm of the gamma function of p dimensions, for elements above \z
  (p - 1) / 2.", { method = "local y = (gb.rand(2) + 3):mvlgamma(2)",
    func = "local y = gb.mvlgamma(gb.rand(2) + 3, 2)" },
  mvlgamma)
method("tensor:mvlgamma_(p: int) -> tensor: The same in place. Example: local y = (gb.rand(2) + 3):mvlgamma_(2)",
  function(x, p) return write("mvlgamma_", x, mvlgamma(source(x), p)) end)

gb.fill = define("gb.fill(x: tensor, value: number) -> tensor: A tensor like x full of a value. Example: local y = \z
  gb.fill(gb.ones(2), 3)", "strict", function(x, value) return gb.full_like(x, value) end)

method("tensor:fill_diagonal_(value: number; wrap: bool = false) -> tensor: value on the diagonal, in place; wrap: \z
  the diagonal of a tall matrix begins anew below each square. Errors: fewer than two dimensions; more than two of \z
  different sizes. Example: local y = gb.zeros(3, 3):fill_diagonal_(1)", function(x, value, options)
  if x.ndim < 2 then fail(format("fill_diagonal_: the tensor has %d dimensions; it needs 2", x.ndim)) end
  local least = x:size(1)
  for d = 2, x.ndim do
    if x.ndim > 2 and x:size(d) ~= least then fail("fill_diagonal_: more than two dimensions must be of one size") end
    least = math.min(least, x:size(d))
  end
  local rows = gb.arange(0, x:size(1), 1, { device = x.device })
  if options.wrap and x.ndim == 2 then rows = rows % (x:size(2) + 1) end
  local mask
  for d = 2, x.ndim do
    local shape = {}
    for k = 1, x.ndim do shape[k] = k == d and x:size(d) or 1 end
    local down = {}
    for k = 1, x.ndim do down[k] = k == 1 and x:size(1) or 1 end
    local same = rows:reshape(down):eq(gb.arange(0, x:size(d), 1, { device = x.device }):reshape(shape))
    mask = mask and mask:logical_and(same) or same
  end
  return x:masked_fill_(mask:expand(x.shape), value)
end)

-- ====}

-- {==== draws in place ====

-- Uniform numbers in [0, 1) for the elements of x, in the dtype that it is computed in.
local function uniform_like(x)
  return gb.rand(x.shape, { dtype = x.dtype == "float64" and "float64" or "float32", device = x.device })
end

local function positive(name, what, value)
  if not (value > 0 and value < math.huge) then fail(format("%s: %s is %g; it must be above 0", name, what, value)) end
end

method("tensor:bernoulli_(p: number = 0.5) -> tensor: 1 with probability p, else 0, in place. Errors: a p beyond 0 \z
  .. 1. Example: local y = gb.zeros(4):bernoulli_(0.3)", function(x, p)
  if not (p >= 0 and p <= 1) then fail(format("bernoulli_: p is %g; it is 0 .. 1", p)) end
  return write("bernoulli_", x, uniform_like(x):lt(p))
end)

method("tensor:exponential_(lambd: number = 1) -> tensor: Draws of the exponential distribution, in place. Errors: a \z
  lambd that is not above 0. Example: local y = gb.zeros(4):exponential_()", function(x, lambd)
  positive("exponential_", "lambd", lambd)
  return write("exponential_", x, (1 - uniform_like(x)):log() / -lambd)
end)

method("tensor:cauchy_(median: number = 0, sigma: number = 1) -> tensor: Draws of the Cauchy distribution, in place. \z
  Errors: a sigma that is not above 0. Example: local y = gb.zeros(4):cauchy_()", function(x, median, sigma)
  positive("cauchy_", "sigma", sigma)
  return write("cauchy_", x, ((uniform_like(x) - 0.5) * pi):tan() * sigma + median)
end)

method("tensor:geometric_(p: number) -> tensor: How many trials of probability p there are up to the first success, \z
  in place. Errors: a p that does not lie between 0 and 1. Example: local y = gb.zeros(4):geometric_(0.5)",
  function(x, p)
  if not (p > 0 and p < 1) then fail(format("geometric_: p is %g; it lies between 0 and 1", p)) end
  local trials = ((1 - uniform_like(x)):log() / (p < 1e-8 and -p or math.log(1 - p))):floor() + 1
  return write("geometric_", x, trials:to(x.dtype))
end)

method("tensor:log_normal_(mean: number = 1, std: number = 2) -> tensor: Exponentials of normal draws, in place. \z
  Errors: a std that is not above 0. Example: local y = gb.zeros(4):log_normal_()", function(x, mean, std)
  positive("log_normal_", "std", std)
  local draws = gb.randn(x.shape, { dtype = x.dtype == "float64" and "float64" or "float32", device = x.device })
  return write("log_normal_", x, (draws * std + mean):exp())
end)

-- Integers up to which a dtype holds all.
local most = { float64 = 1 << 53, float32 = 1 << 24, float16 = 1 << 11, bfloat16 = 1 << 8, int64 = math.maxinteger,
  int32 = (1 << 31) - 1, int16 = (1 << 15) - 1, int8 = 127, uint8 = 255, bool = 1 }
method("tensor:random_(first?: int, last?: int) -> tensor: Integers first .. last - 1, in place; of one argument 0 .. \z
  first - 1, of none 0 up to the largest that the dtype holds with all before it. Errors: an empty range. Example: \z
  local y = gb.zeros(4):random_(10)", function(x, first, last)
  local low = last and first or 0
  local high = last or first or (most[x.dtype] < math.maxinteger and most[x.dtype] + 1 or math.maxinteger)
  if low >= high then fail(format("random_: there is no integer from %d below %d", low, high)) end
  local least = (x.dtype == "uint8" or x.dtype == "bool") and 0 or -most[x.dtype] - 1
  if not x:is_floating_point() and (low < least or high - 1 > most[x.dtype]) then
    fail(format("random_: %s holds %d .. %d, and the integers are %d .. %d", x.dtype, least, most[x.dtype], low,
      high - 1))
  end
  return write("random_", x, gb.randint(low, high, x.shape, { dtype = "int64", device = x.device }))
end)

gb.randint_like = define("gb.randint_like(x: tensor, low: int, high?: int; dtype?: dtype) -> tensor: Integers low .. \z
  high - 1 (of one number 0 .. low - 1) in the shape of x, in its dtype unless one is given. Errors: an empty range. \z
  Example: local y = gb.randint_like(gb.ones(2, 2), 10)", "strict", function(x, low, high, options)
  if not high then low, high = 0, low end
  if low >= high then fail(format("randint_like: there is no integer from %d below %d", low, high)) end
  return gb.randint(low, high, x.shape, { dtype = "int64", device = x.device }):to(options.dtype or x.dtype)
end)

gb.normal = define("gb.normal(mean: tensor|number, std: tensor|number, size?: shape) -> tensor: Normal draws of these \z
  means and deviations, which broadcast; size is for two numbers. Errors: two numbers without a size, a std below 0. \z
  Example: local y = gb.normal(gb.zeros(3), 2)", "strict", function(mean, std, size)
  if type(std) == "number" and not (std >= 0) then fail(format("normal: std is %g; it is 0 or more", std)) end
  if gb.is_tensor(std) and std:lt(0):any():item() then fail("normal: an element of std is below 0") end
  if not gb.is_tensor(mean) and not gb.is_tensor(std) then
    if not size then fail("normal: of two numbers it needs a size") end
    return gb.randn(size) * std + mean
  end
  if size then fail("normal: the size is that of the tensors") end
  local both_of = (gb.is_tensor(mean) and mean or std) + (gb.is_tensor(std) and std or 0) * 0
  if not both_of:is_floating_point() then
    fail(format("normal: the draws would be %s; give a mean or a std of floats", both_of.dtype))
  end
  return gb.randn_like(both_of) * std + mean
end)

-- ====}

-- {==== matrices ====

local function square(name, x)
  if x.ndim < 2 or x:size(-1) ~= x:size(-2) then
    fail(format("%s: the tensor has shape %s; its last two sizes must be equal", name, table.concat(x.shape, "x")))
  end
end

-- By Taylor's series of A / 2^s, whose norm is 1 at most, squared s times, which each matrix has its own of. 18 terms
-- leave 1 / 19! of it.
local matrix_exp = native.of_class_float32(function(A)
  square("matrix_exp", A)
  local n = A:size(-1)
  if A:numel() == 0 then return A:clone() end
  local norms = A:detach():abs():sum(-2, { keepdim = true }):amax(-1, { keepdim = true })
  local scales = norms:log2():ceil():nan_to_num(0, 0, 0):clamp(0)
  local B = A / scales:exp2()
  local eye = gb.eye(n, { dtype = A.dtype, device = A.device })
  local y = eye + B / 18
  for k = 17, 1, -1 do y = eye + B:matmul(y) / k end
  for k = 1, scales:amax():item() do y = gb.where(scales:ge(k), y:matmul(y), y) end
  return y
end)
both("matrix_exp", ")", " -> tensor: The exponential of each matrix. Errors: matrices that are not square.",
  { method = "local y = gb.zeros(2, 2):matrix_exp()", func = "local y = gb.matrix_exp(gb.zeros(2, 2))" }, matrix_exp)
gb.linalg.matrix_exp = define("gb.linalg.matrix_exp(A: tensor) -> tensor: The exponential of each matrix. Errors: \z
  matrices that are not square. Example: local y = gb.linalg.matrix_exp(gb.zeros(2, 2))", "strict", matrix_exp)

both("logdet", ")", " -> tensor: The logarithm of the determinant of each matrix: NaN where that is negative.",
  { method = "print(gb.eye(2):logdet())", func = "print(gb.logdet(gb.eye(2)))" }, function(A)
    local sign, logabsdet = gb.linalg.slogdet(A)
    return gb.where(sign:lt(0), 0 / 0, logabsdet)
  end)

-- By two triangular systems.
local function cholesky_solve(B, L, upper)
  square("cholesky_solve", L)
  local lower = upper and L:transpose(-2, -1) or L
  local y = gb.linalg.solve_triangular(lower, B, { upper = false })
  return gb.linalg.solve_triangular(lower:transpose(-2, -1), y, { upper = true })
end
both("cholesky_solve", "L: tensor, upper: bool = false)", " -> tensor: The y of which A y = x, L being the lower (or \z
  the upper) factor of A that linalg.cholesky gives.", { method = "local y = gb.ones(2, 1):cholesky_solve(gb.eye(2))",
  func = "local y = gb.cholesky_solve(gb.ones(2, 1), gb.eye(2))" }, cholesky_solve)
both("cholesky_inverse", "upper: bool = false)", " -> tensor: The inverse of the matrix whose lower (or upper) factor \z
  x is, as linalg.cholesky gives it.", { method = "local y = gb.eye(2):cholesky_inverse()",
  func = "local y = gb.cholesky_inverse(gb.eye(2))" }, function(L, upper)
    square("cholesky_inverse", L)
    return cholesky_solve(gb.eye(L:size(-1), { dtype = L.dtype, device = L.device }), L, upper)
  end)

-- The product of the first sizes, from one dim to another.
local function product(x, first, last)
  local n = 1
  for d = first, last do n = n * x:size(d) end
  return n
end

gb.linalg.tensorinv = define("gb.linalg.tensorinv(A: tensor, ind: int = 2) -> tensor: The inverse of A as a map from \z
  tensors of its last sizes to tensors of its first `ind`. Errors: products of these sizes that differ. Example: \z
  local y = gb.linalg.tensorinv(gb.eye(4):reshape(2, 2, 4), 2)", "strict", function(A, ind)
  if ind < 1 or ind > A.ndim then fail(format("tensorinv: ind is %d; it is 1 .. %d", ind, A.ndim)) end
  local rows, columns, shape = product(A, 1, ind), product(A, ind + 1, A.ndim), {}
  if rows ~= columns then fail(format("tensorinv: %d rows and %d columns; they must be equal", rows, columns)) end
  for d = ind + 1, A.ndim do shape[#shape + 1] = A:size(d) end
  for d = 1, ind do shape[#shape + 1] = A:size(d) end
  return gb.linalg.inv(A:reshape(rows, columns)):reshape(shape)
end)

gb.linalg.tensorsolve = define("gb.linalg.tensorsolve(A: tensor, B: tensor) -> tensor: The x of which A, summed with \z
  x over its last dimensions, is B. Errors: sizes that do not fit. Example: local x = gb.linalg.tensorsolve(\z
  gb.eye(4):reshape(2, 2, 4), gb.ones(2, 2))", "strict", function(A, B)
  local shape = {}
  for d = B.ndim + 1, A.ndim do shape[#shape + 1] = A:size(d) end
  local n = B:numel()
  if B.ndim > A.ndim or product(A, 1, math.min(B.ndim, A.ndim)) ~= n or product(A, B.ndim + 1, A.ndim) ~= n then
    fail(format("tensorsolve: A of %s and B of %s do not fit", table.concat(A.shape, "x"),
      table.concat(B.shape, "x")))
  end
  return gb.linalg.solve(A:reshape(n, n), B:reshape(n, 1)):reshape(shape)
end)

gb.linalg.householder_product = define("gb.linalg.householder_product(A: tensor, tau: tensor) -> tensor: The first \z
  columns of the product of the reflections 1 - tau v v', whose vectors are the columns of A below its diagonal, with \z
  1 on it. Errors: more reflections than columns. Example: local q = \z
  gb.linalg.householder_product(gb.ones(3, 2), gb.zeros(2))", "strict", native.of_class_float32(function(A, tau)
  if A.ndim < 2 or tau.ndim ~= A.ndim - 1 or A:size(-1) > A:size(-2) or tau:size(-1) > A:size(-1) then
    fail(format("householder_product: A of %s and tau of %s; A is tall, with a tau for each of its columns at most",
      table.concat(A.shape, "x"), table.concat(tau.shape, "x")))
  end
  local m, n, k = A:size(-2), A:size(-1), tau:size(-1)
  local eye = gb.eye(m, { dtype = A.dtype, device = A.device })
  local vectors = A:tril(-1) + eye:narrow(2, 1, n)
  local y = eye:narrow(2, 1, n)
  for i = k, 1, -1 do
    local v = vectors:narrow(-1, i, 1)
    y = y - tau:narrow(-1, i, 1):unsqueeze(-1) * v:matmul(v:transpose(-2, -1):matmul(y))
  end
  return y
end))

-- ====}

-- {==== statistics ====

both("histogram", "bins: tensor|int; range?: list, weight?: tensor, density: bool = false)", " -> tensor, tensor: How \z
  many elements lie in each of `bins` equal parts of range (of what x spans, unless given), or between edges in a \z
  vector, and the edges; weight: what each counts; density: as shares per length that add up to 1. Errors: an empty \z
  range, no bins, integers.", { method = "local counts, edges = gb.rand(9):histogram(3)",
  func = "local counts, edges = gb.histogram(gb.rand(9), 3)" }, function(x, bins, options)
    if not x:is_floating_point() then fail(format("histogram: x is %s; convert it with x:float()", x.dtype)) end
    local edges, weight = bins, options.weight
    if not gb.is_tensor(bins) then
      if bins < 1 then fail(format("histogram: bins is %d; it is 1 or more", bins)) end
      local range = options.range
      if range and not (#range == 2 and type(range[1]) == "number" and type(range[2]) == "number") then
        fail("histogram: range is a list of two numbers")
      end
      local low = range and range[1] or x:numel() > 0 and x:amin():item() or 0
      local high = range and range[2] or x:numel() > 0 and x:amax():item() or 1
      if low == high then low, high = low - 0.5, high + 0.5 end
      if not (low < high and high - low < math.huge) then
        fail(format("histogram: the range %g .. %g is empty or not finite", low, high))
      end
      edges = gb.linspace(low, high, bins + 1, { dtype = x.dtype, device = x.device })
    elseif edges.ndim ~= 1 or edges:numel() < 2 then fail("histogram: edges are a vector of two at least")
    end
    if weight and table.concat(weight.shape, "x") ~= table.concat(x.shape, "x") then
      fail("histogram: weight has the shape of x")
    end
    local n, flat = edges:numel() - 1, x:detach():reshape(-1)
    local inside = flat:ge(edges[1]):logical_and(flat:le(edges[n + 1]))
    flat = flat:masked_select(inside)
    local at = (gb.searchsorted(edges, flat, { right = true }) - 1):clamp(0, n - 1)
    local counts = at:bincount(weight and weight:detach():reshape(-1):masked_select(inside) or nil,
      { minlength = n }):to(x.dtype)
    if options.density then counts = counts / (edges:diff() * counts:sum()) end
    return counts, edges
  end)

-- The pairs of rows, i before j.
local pdist = native.of_class_float32(function(x, p)
  if x.ndim ~= 2 then fail(format("pdist: x has %d dimensions; it is a matrix", x.ndim)) end
  if not (p >= 0) then fail(format("pdist: p is %g; it is 0 or more", p)) end
  local at = gb.triu_indices(x:size(1), x:size(1), 1, { device = x.device })
  return (x:index_select(1, at[1]) - x:index_select(1, at[2])):norm(p, 2)
end)
local pdist_doc = " -> tensor: The p-norm of each row less each one behind it, n (n - 1) / 2 of them in order. \z
  Errors: no matrix, a p below 0."
gb.pdist = define("gb.pdist(x: tensor, p: number = 2)" .. pdist_doc .. " Example: local d = gb.pdist(gb.rand(4, 2))",
  "strict", pdist)
gb.nn.functional.pdist = define("gb.nn.functional.pdist(x: tensor, p: number = 2)" .. pdist_doc ..
  " Example: local d = gb.nn.functional.pdist(gb.rand(4, 2))", "strict", pdist)

-- ====}
