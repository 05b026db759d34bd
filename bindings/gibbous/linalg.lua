-- linalg.lua - gb.linalg: torch.linalg's functions, made of the ops of the family linalg, which run LAPACK on the CPU
-- and cuSOLVER on a GPU. Where a device has no such library its matrices go to the CPU, and the results come back.
--
-- Matrices are the last two dims, all before them a batch. Defaults are PyTorch's. What is left out: forms for complex
-- numbers, and tensors as tolerances.

local gb, native = ...
local define, inner, fail = native.define, native.inner, native.fail -- fail raises with the recipe's line
local format, concat = string.format, table.concat
local linalg = gb.linalg

-- {==== What several functions need ====

local function shape_text(x) return x.ndim == 0 and "scalar" or concat(x.shape, "x") end

-- A matrix, or a batch of them; returns rows and columns.
local function sizes(name, A)
  if A.ndim < 2 then
    fail(format("linalg.%s: it takes a matrix or a batch of them, got the shape %s", name, shape_text(A)))
  end
  return A.shape[A.ndim - 1], A.shape[A.ndim]
end

local function square(name, A)
  local rows, columns = sizes(name, A)
  if rows ~= columns then
    fail(format("linalg.%s: the last two sizes must be equal, got the shape %s", name, shape_text(A)))
  end
  return rows
end

local function transposed(A) return A:transpose(-2, -1) end

-- Counts as many dims from 1, whatever sign the recipe counts with.
local function position(name, x, dim)
  local from_1 = dim < 0 and dim + x.ndim + 1 or dim
  if from_1 < 1 or from_1 > x.ndim then
    fail(format("linalg.%s: there is no dimension %d in the shape %s", name, dim, shape_text(x)))
  end
  return from_1
end

-- The unit matrix of n rows in x's dtype, with x's batch.
local function unit_like(x, n)
  local eye = gb.eye(n, { dtype = x.dtype, device = x.device })
  return x.ndim > 2 and eye:expand(x.shape):clone() or eye
end

-- Symmetric matrices are those of their lower triangle.
local function mirrored(A) return A:tril() + transposed(A:tril(-1)) end

-- Singular values count as 0 up to atol, or rtol times the largest.
local function tolerances(A, options)
  local rows, columns = A.shape[A.ndim - 1], A.shape[A.ndim]
  local spacing = A.dtype == "float64" and 2.0 ^ -52 or 2.0 ^ -23
  local rtol = options.rtol or ((options.atol or 0) > 0 and 0 or spacing * math.max(rows, columns))
  return rtol, options.atol or 0
end

-- How many of the singular values s count.
local function rank_of(s, rtol, atol)
  if s.shape[s.ndim] == 0 then return s:sum(-1):long() end
  local least = gb.maximum(s:amax(-1, { keepdim = true }) * rtol, atol)
  return s:gt(least):sum(-1)
end

-- Of the class float32, as the ops of the family: products between them would run in 16 bits under autocast.
local function float32(fn)
  return function(...)
    if not gb.amp.is_enabled() then return fn(...) end
    return native.in_float32(fn, ...)
  end
end
native.of_class_float32 = float32

-- ====}

-- {==== Norms ====

local function vector_norm(x, ord, dim, options)
  if options.dtype then x = x:to(options.dtype) end
  return x:norm(ord, dim, { keepdim = options.keepdim })
end

linalg.vector_norm = define("gb.linalg.vector_norm(x: tensor, ord: number = 2, dim?: dims; keepdim: bool = false, \z
  dtype?: dtype) -> tensor: The norm of the elements along dim, or of all of them: the ord-th root of the sum of \z
  |x|^ord; math.huge: the largest magnitude, -math.huge the smallest, 0: how many are not 0. dtype: to compute in. \z
  Errors: integers; an ord that is NaN. Example: print(gb.linalg.vector_norm(gb.tensor({ 3.0, 4.0 })))", "strict",
  vector_norm)

-- By ord, the norm of x over the dims d1 (rows) and d2 (columns), which stay with size 1.
local function sums(over, along, pick)
  return function(x, d)
    local total = x:abs():sum(d[over], { keepdim = true })
    return total[pick](total, d[along], { keepdim = true })
  end
end

-- The singular values of the matrices that the dims d are, and what `pick` makes of them.
local function values(pick)
  return function(x, d)
    local order = {}
    for i = 1, x.ndim do
      if i ~= d[1] and i ~= d[2] then order[#order + 1] = i end
    end
    table.move(d, 1, 2, #order + 1, order)
    local _, s = inner.linalg_svd(x:permute(order), { full_matrices = false })
    local y = pick(s)
    return y:unsqueeze(math.min(d[1], d[2])):unsqueeze(math.max(d[1], d[2]))
  end
end

local matrix_norms = {
  fro = function(x, d) return x:norm(2, d, { keepdim = true }) end,
  nuc = values(function(s) return s:sum(-1) end),
  [2] = values(function(s) return s:amax(-1) end),
  [-2] = values(function(s) return s:amin(-1) end),
  [1] = sums(1, 2, "amax"), [-1] = sums(1, 2, "amin"),
  [math.huge] = sums(2, 1, "amax"), [-math.huge] = sums(2, 1, "amin"),
}

local function matrix_norm(name, x, ord, dim, options)
  local norm = matrix_norms[ord]
  if not norm then
    fail(format("linalg.%s: ord %s is no norm of a matrix; it is 'fro', 'nuc', 1, -1, 2, -2, math.huge or -math.huge",
      name, tostring(ord)))
  end
  if type(dim) ~= "table" or #dim ~= 2 then
    fail(format("linalg.%s: a matrix has two dimensions; give dim = { rows, columns }", name))
  end
  if options.dtype then x = x:to(options.dtype) end
  local d = { position(name, x, dim[1]), position(name, x, dim[2]) }
  if d[1] == d[2] then fail(format("linalg.%s: dim names the dimension %d twice", name, d[1])) end
  local y = norm(x, d)
  return options.keepdim and y or y:squeeze(d)
end

linalg.matrix_norm = define("gb.linalg.matrix_norm(A: tensor, ord: number|\"fro\"|\"nuc\" = \"fro\", dim?: dims; \z
  keepdim: bool = false, dtype?: dtype) -> tensor: The norm of each matrix: \"fro\" of Frobenius, \"nuc\" the sum of \z
  the singular values, 2 and -2 the largest and the smallest of them, 1 and -1 the largest and the smallest sum of \z
  magnitudes of a column, math.huge and -math.huge of a row. dim: { rows, columns }, the last two unless given. \z
  Errors: another ord; no two dims; integers; what linalg.svd refuses. Example: \z
  print(gb.linalg.matrix_norm(gb.ones(2, 3), \"nuc\"))", "strict", function(A, ord, dim, options)
    if not dim then sizes("matrix_norm", A) end
    return matrix_norm("matrix_norm", A, ord, dim or { -2, -1 }, options)
  end)

linalg.norm = define("gb.linalg.norm(A: tensor, ord?: number|\"fro\"|\"nuc\", dim?: dims; keepdim: bool = false, \z
  dtype?: dtype) -> tensor: vector_norm where dim is one dimension or A a vector, matrix_norm where dim is two or A a \z
  matrix; without ord the root of the sum of squares over dim, or of all elements. Errors: as those two; an ord \z
  without dim of a tensor of more than two dimensions. Example: print(gb.linalg.norm(gb.ones(2, 3)))", "strict",
  function(A, ord, dim, options)
    local count = type(dim) == "table" and #dim or dim and 1 or A.ndim
    if ord == nil then return vector_norm(A, 2, dim, options) end
    if not dim and count > 2 then
      fail(format("linalg.norm: the shape %s is no vector and no matrix; give dim, one or two dimensions",
        shape_text(A)))
    end
    if count == 2 then return matrix_norm("norm", A, ord, dim or { -2, -1 }, options) end
    if type(ord) ~= "number" then
      fail(format("linalg.norm: ord '%s' is for matrices; give dim = { rows, columns }, or a number", ord))
    end
    return vector_norm(A, ord, dim, options)
  end)

-- ====}

-- {==== Systems of equations ====

linalg.inv = define("gb.linalg.inv(A: tensor) -> tensor: The inverse of each square matrix. Errors: a singular \z
  matrix, with its place in the batch; no square; elements that are not finite; 16-bit floats outside of autocast. \z
  Example: print(gb.linalg.inv(gb.tensor({ { 2.0, 0.0 }, { 0.0, 4.0 } })))", "strict",
  function(A) return inner.linalg_inv(A) end)

-- Is B a batch of vectors for these matrices?
local function is_vector(A, B)
  if B.ndim == 1 then return true end
  if B.ndim ~= A.ndim - 1 then return false end
  for i = 1, B.ndim do
    if B.shape[i] ~= A.shape[i] then return false end
  end
  return true
end

local function solve(A, B, options)
  square("solve", A)
  if is_vector(A, B) then
    local column = B:unsqueeze(-1)
    return inner.linalg_solve(options.left and A or transposed(A), column):squeeze(-1)
  end
  if options.left then return inner.linalg_solve(A, B) end
  return transposed(inner.linalg_solve(transposed(A), transposed(B)))
end

linalg.solve = define("gb.linalg.solve(A: tensor, B: tensor; left: bool = true) -> tensor: The X of which A X = B, or \z
  X A = B where left is false; B is a matrix, or a vector of A's batch; batches broadcast. Errors: as inv; a B of \z
  other rows. Example: print(gb.linalg.solve(gb.eye(2) * 2, gb.ones(2)))", "strict", solve)

linalg.solve_triangular = define("gb.linalg.solve_triangular(A: tensor, B: tensor; upper: bool, left: bool = true, \z
  unitriangular: bool = false) -> tensor: As solve for a triangular A, of which the other triangle is not used, nor \z
  the diagonal where unitriangular says that it is 1. Errors: a 0 on the diagonal; as solve. Example: \z
  print(gb.linalg.solve_triangular(gb.eye(2) * 2, gb.ones(2, 1), { upper = true }))", "strict", function(A, B, options)
    local upper, unitriangular = options.upper, options.unitriangular
    square("solve_triangular", A)
    if options.left then
      return inner.linalg_solve_triangular(A, B, { upper = upper, unitriangular = unitriangular })
    end
    return transposed(inner.linalg_solve_triangular(transposed(A), transposed(B),
      { upper = not upper, unitriangular = unitriangular }))
  end)

linalg.det = define("gb.linalg.det(A: tensor) -> tensor: The determinant of each square matrix. Its second derivative \z
  needs matrices that are not singular. Errors: no square; elements that are not finite. Example: \z
  print(gb.linalg.det(gb.eye(3) * 2))", "strict", function(A) return inner.linalg_det(A) end)

linalg.slogdet = define("gb.linalg.slogdet(A: tensor) -> tensor, tensor: The sign of each determinant, -1, 0 or 1, \z
  and the logarithm of its magnitude, -inf of a singular matrix, which has no gradient. Errors: as det. Example: \z
  local sign, logabsdet = gb.linalg.slogdet(gb.eye(3) * 2)", "strict", function(A) return inner.linalg_slogdet(A) end)

-- The matrix by its singular values, some of them taken as 0, turned around.
local function pinv(A, options)
  local rtol, atol = tolerances(A, options)
  if options.hermitian then
    square("pinv", A)
    A = mirrored(A)
  end
  return inner.linalg_pinv(A, { rtol = rtol, atol = atol })
end

linalg.pinv = define("gb.linalg.pinv(A: tensor; atol?: number, rtol?: number, hermitian: bool = false) -> tensor: The \z
  inverse of Moore and Penrose. Singular values up to atol, or rtol times the largest, count as 0; rtol is the larger \z
  size times the spacing of the dtype, or 0 where an atol above 0 is given. hermitian: only the lower triangle is \z
  read. Errors: elements that are not finite; tolerances below 0. Example: print(gb.linalg.pinv(gb.ones(2, 3)))",
  "strict", function(A, options)
    sizes("pinv", A)
    return pinv(A, options)
  end)

linalg.lstsq = define("gb.linalg.lstsq(A: tensor, B: tensor; rcond?: number) -> tensor, tensor, tensor, tensor: The X \z
  of the least |A X - B|, and of those the least X; the sums of squares that remain, for each column (empty where A \z
  has not more rows than columns, or not their rank); the ranks; the singular values. Those up to rcond times the \z
  largest count as 0, as in pinv. Gradients go through X. Errors: as pinv. Example: local X, residuals, rank = \z
  gb.linalg.lstsq(gb.tensor({ { 1.0, 0.0 }, { 1.0, 1.0 }, { 1.0, 2.0 } }), gb.tensor({ { 1.0 }, { 3.0 }, { 5.0 } }))",
  "strict", float32(function(A, B, options)
    local rows, columns = sizes("lstsq", A)
    local vector = B.ndim == 1 or B.ndim == A.ndim - 1 and B.shape[B.ndim] == rows
    if vector then B = B:unsqueeze(-1) end
    if B.shape[B.ndim - 1] ~= rows then
      fail(format("linalg.lstsq: A %s and B %s do not fit: B needs as many rows as A", shape_text(A), shape_text(B)))
    end
    local rtol, atol = tolerances(A, { rtol = options.rcond })
    local _, s = inner.linalg_svd(A:detach(), { full_matrices = false })
    local rank = rank_of(s, rtol, atol)
    local X = inner.linalg_pinv(A, { rtol = rtol }):matmul(B)
    local residuals = gb.empty(0, { dtype = X.dtype, device = X.device })
    if rows > columns and rank:eq(columns):all():item() then residuals = (A:matmul(X) - B):square():sum(-2) end
    return vector and X:squeeze(-1) or X, residuals, rank, s
  end))

-- ====}

-- {==== Decompositions ====

linalg.cholesky = define("gb.linalg.cholesky(A: tensor; upper: bool = false) -> tensor: The lower triangular L of \z
  which A = L L^T, or with upper the upper U of which A = U^T U, of symmetric positive definite matrices, of which \z
  that triangle is read. Errors: a matrix that is not positive definite, with its place in the batch; elements that \z
  are not finite. Example: print(gb.linalg.cholesky(gb.eye(2) * 4))", "strict", function(A, options)
    return inner.linalg_cholesky(A, { upper = options.upper })
  end)

linalg.qr = define("gb.linalg.qr(A: tensor; mode: \"reduced\"|\"complete\"|\"r\" = \"reduced\") -> tensor, tensor: \z
  A = Q R, the columns of Q orthonormal, R upper triangular, with the signs that LAPACK gives. \"complete\": Q is \z
  square; \"r\": only R, Q is empty. Errors: elements that are not finite; a gradient of \"complete\" with more rows \z
  than columns. Example: local Q, R = gb.linalg.qr(gb.ones(3, 2))", "strict", function(A, options)
    local Q, R = inner.linalg_qr(A, { complete = options.mode == "complete" })
    if options.mode == "r" then Q = gb.empty(0, { dtype = R.dtype, device = R.device }) end
    return Q, R
  end)

linalg.svd = define("gb.linalg.svd(A: tensor; full_matrices: bool = true) -> tensor, tensor, tensor: A = U diag(S) \z
  Vh, S falling; full_matrices: U and Vh are square. Signs are LAPACK's; gradients through U and Vh need singular \z
  values that differ. Errors: elements that are not finite. Example: local U, S, Vh = gb.linalg.svd(gb.ones(3, 2))",
  "strict",
  function(A, options) return inner.linalg_svd(A, { full_matrices = options.full_matrices }) end)

local function svdvals(A)
  local _, s = inner.linalg_svd(A, { full_matrices = false })
  return s
end

linalg.svdvals = define("gb.linalg.svdvals(A: tensor) -> tensor: The singular values, falling. Errors: as svd. \z
  Example: print(gb.linalg.svdvals(gb.ones(3, 2)))", "strict", svdvals)

linalg.eigh = define("gb.linalg.eigh(A: tensor, UPLO: \"L\"|\"U\" = \"L\") -> tensor, tensor: The eigenvalues of \z
  symmetric matrices, rising, and their eigenvectors, which are columns; UPLO says which triangle is read. Gradients \z
  through the vectors need eigenvalues that differ. Errors: no square; elements that are not finite. Example: local \z
  L, Q = gb.linalg.eigh(gb.tensor({ { 2.0, 1.0 }, { 1.0, 2.0 } }))", "strict", function(A, UPLO)
    return inner.linalg_eigh(A, { upper = UPLO == "U" })
  end)

local function eigvalsh(A, UPLO)
  return (inner.linalg_eigh(A, { upper = UPLO == "U" }))
end

linalg.eigvalsh = define("gb.linalg.eigvalsh(A: tensor, UPLO: \"L\"|\"U\" = \"L\") -> tensor: The eigenvalues of \z
  symmetric matrices, rising. Errors: as eigh. Example: print(gb.linalg.eigvalsh(gb.eye(2)))", "strict", eigvalsh)

-- ====}

-- {==== What is made of these ====

linalg.matrix_rank = define("gb.linalg.matrix_rank(A: tensor; atol?: number, rtol?: number, hermitian: bool = false) \z
  -> tensor: How many singular values are above atol and rtol times the largest, with the defaults of pinv, as int64. \z
  hermitian: only the lower triangle is read. Errors: as pinv. Example: print(gb.linalg.matrix_rank(gb.ones(2, 3)))",
  "strict", function(A, options)
    sizes("matrix_rank", A)
    local rtol, atol = tolerances(A, options)
    A = A:detach()
    return rank_of(options.hermitian and eigvalsh(A):abs() or svdvals(A), rtol, atol)
  end)

linalg.cond = define("gb.linalg.cond(A: tensor, p?: number|\"fro\"|\"nuc\") -> tensor: The condition number of each \z
  matrix: the largest singular value through the smallest, the other way around for p = -2, and for the other norms \z
  of matrix_norm the norm of A times that of its inverse. Errors: as matrix_norm and, but for 2 and -2, as inv. \z
  Example: print(gb.linalg.cond(gb.eye(2)))", "strict", function(A, p)
    sizes("cond", A)
    if p == nil or p == 2 or p == -2 then
      local s = svdvals(A)
      local most, least = s:amax(-1), s:amin(-1)
      return p == -2 and least / most or most / least
    end
    square("cond", A)
    local own = matrix_norm("cond", A, p, { -2, -1 }, {})
    return own * matrix_norm("cond", inner.linalg_inv(A), p, { -2, -1 }, {})
  end)

linalg.matrix_power = define("gb.linalg.matrix_power(A: tensor, n: int) -> tensor: A times itself, n of them; the \z
  unit matrix for 0, the inverse to the power -n below 0. Errors: no square; below 0 as inv. Example: \z
  print(gb.linalg.matrix_power(gb.eye(2) * 2, 10))", "strict", function(A, n)
    local rows = square("matrix_power", A)
    if n == 0 then return unit_like(A, rows) end
    if n < 0 then A, n = inner.linalg_inv(A), -n end
    local result
    while n > 0 do
      if n & 1 == 1 then result = result and result:matmul(A) or A end
      n = n >> 1
      if n > 0 then A = A:matmul(A) end
    end
    return result:clone()
  end)

-- Where to split the product of matrices first .. last so that it takes the fewest multiplications.
local function best_splits(shapes)
  local cost, split = {}, {}
  for i = 1, #shapes do cost[i], split[i] = { [i] = 0 }, {} end
  for length = 2, #shapes do
    for first = 1, #shapes - length + 1 do
      local last = first + length - 1
      for at = first, last - 1 do
        local whole = cost[first][at] + cost[at + 1][last] + shapes[first][1] * shapes[at][2] * shapes[last][2]
        if not cost[first][last] or whole < cost[first][last] then cost[first][last], split[first][last] = whole, at end
      end
    end
  end
  return split
end

linalg.multi_dot = define("gb.linalg.multi_dot(tensors: tensors) -> tensor: The product of several matrices, in the \z
  order that takes the fewest multiplications; the first may be a vector (a row), and the last (a column). Errors: \z
  fewer than two; batches; sizes that do not fit. Example: \z
  print(gb.linalg.multi_dot({ gb.ones(2, 3), gb.ones(3, 4), gb.ones(4) }))", "strict", function(tensors)
    if gb.is_tensor(tensors) or #tensors < 2 then fail("linalg.multi_dot: it takes a list of at least two tensors") end
    local n, shapes = #tensors, {}
    local row, column = tensors[1].ndim == 1, tensors[n].ndim == 1
    if row then tensors[1] = tensors[1]:unsqueeze(1) end
    if column then tensors[n] = tensors[n]:unsqueeze(2) end
    for i = 1, n do
      local x = tensors[i]
      if x.ndim ~= 2 then
        fail(format("linalg.multi_dot: tensor %d has the shape %s; it takes matrices, and vectors at the ends", i,
          shape_text(x)))
      end
      shapes[i] = x.shape
    end
    local split = best_splits(shapes)
    local function product(first, last)
      if first == last then return tensors[first] end
      local at = split[first][last]
      return product(first, at):matmul(product(at + 1, last))
    end
    local y = product(1, n)
    if row then y = y:squeeze(1) end
    return column and y:squeeze(-1) or y
  end)

-- ====}

-- {==== Products of vectors, and what other functions do as well ====

linalg.cross = define("gb.linalg.cross(x: tensor, y: tensor; dim: dim = -1) -> tensor: The cross products of vectors \z
  along dim, which has size 3; other dimensions broadcast. Example: \z
  print(gb.linalg.cross(gb.tensor({ 1.0, 0, 0 }), gb.tensor({ 0.0, 1, 0 })))", "strict",
  function(x, y, options) return gb.cross(x, y, options.dim) end)

linalg.vecdot = define("gb.linalg.vecdot(x: tensor, y: tensor; dim: dim = -1) -> tensor: The inner products of \z
  vectors along dim; other dimensions broadcast. Example: print(gb.linalg.vecdot(gb.ones(2, 3), gb.ones(3)))", "strict",
  function(x, y, options)
    if not gb.amp.is_enabled() then return (x * y):sum(options.dim) end
    x, y = gb.broadcast_tensors(x, y) -- the products of rows and columns that they are in PyTorch, of the class lower
    x, y = x:movedim(options.dim, -1), y:movedim(options.dim, -1)
    return x:unsqueeze(-2):matmul(y:unsqueeze(-1)):squeeze({ -1, -2 })
  end)

linalg.matmul = define("gb.linalg.matmul(x: tensor, y: tensor) -> tensor: As gb.matmul. Example: \z
  print(gb.linalg.matmul(gb.eye(2), gb.ones(2)))", "strict", function(x, y) return x:matmul(y) end)

linalg.diagonal = define("gb.linalg.diagonal(A: tensor; offset: int = 0, first: dim = -2, second: dim = -1) -> \z
  tensor: The diagonal of each matrix, as a view. Example: print(gb.linalg.diagonal(gb.eye(2)))", "strict",
  function(A, options) return A:diagonal(options.offset, options.first, options.second) end)

linalg.vander = define("gb.linalg.vander(x: tensor; N?: int) -> tensor: The powers 0 .. N - 1 of the elements, as a \z
  new last dimension; N: the size of the last one unless given. Errors: a scalar, an N below 1. Example: \z
  print(gb.linalg.vander(gb.tensor({ 1.0, 2, 3 })))", "strict", function(x, options)
  if x.ndim == 0 then fail("linalg.vander: x is a scalar; it takes vectors") end
  local n, shape = options.N or x.shape[x.ndim], x.shape
  if n < 1 then fail(format("linalg.vander: N is %d; it is 1 or more", n)) end
  shape[#shape + 1] = 1
  local ones = x:new_ones(shape)
  if n == 1 then return ones end
  shape[#shape] = n - 1
  return gb.cat({ ones, x:unsqueeze(-1):expand(shape) }, -1):cumprod(-1)
end)

-- ====}
