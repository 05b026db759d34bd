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
      name, native.shown(ord)))
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
    if B.ndim < 2 or B:size(-2) ~= rows then
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
    while n ~= 0 do -- -math.mininteger is itself, whose bits are those of 2^63
      if n & 1 == 1 then result = result and result:matmul(A) or A end
      n = n >> 1
      if n ~= 0 then A = A:matmul(A) end
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

-- {==== LU ====

local PANEL = 32 -- columns that are eliminated one by one; what is to their right follows in products

-- Rows of each matrix x [b, m, n] in the order that `order` [b, m] says, from 0.
local function reordered(x, order) return x:gather(2, order:unsqueeze(3):expand(x.shape)) end

-- Eliminate the columns of a panel [b, m, w]. Returns L and U in one, the order of rows, and the row each step took.
-- Whether a pivot is 0 over something else, which exchanged rows rule out, goes to the list `broken`.
local function eliminate(panel, pivot, broken)
  local b, m, w = panel.shape[1], panel.shape[2], panel.shape[3]
  local place = gb.arange(0, m, 1, { device = panel.device }):expand(b, m)
  local order, rows = place:clone(), {}
  for j = 1, math.min(m, w) do
    if pivot then
      local row = panel:narrow(3, j, 1):narrow(2, j, m - j + 1):squeeze(3):abs():argmax(2, { keepdim = true }) + (j - 1)
      local here = gb.full({ b, 1 }, j - 1, { dtype = "int64", device = panel.device })
      local swap = place:clone():scatter_(2, here, row):scatter_(2, row, here)
      panel, order, rows[j] = reordered(panel, swap), order:gather(2, swap), row
    end
    if j < m then
      local top = panel:narrow(2, j, 1):narrow(3, j, 1)
      local below = panel:narrow(2, j + 1, m - j):narrow(3, j, 1)
      if not pivot then broken[#broken + 1] = top:eq(0):logical_and(below:ne(0)):any() end
      below:copy_(below / gb.where(top:eq(0), 1, top):to(panel.dtype)) -- under a 0 there is nothing else
      if j < w then
        panel:narrow(2, j + 1, m - j):narrow(3, j + 1, w - j):sub_(below:matmul(
          panel:narrow(2, j, 1):narrow(3, j + 1, w - j)))
      end
    end
  end
  return panel, order, rows
end

-- L without its diagonal and U in one, the order of rows and the pivots, from 0, of matrices x [b, m, n].
local function eliminated(x, pivot)
  local b, m, n = x.shape[1], x.shape[2], x.shape[3]
  local k = math.min(m, n)
  local made, pivots, broken = x:clone(), {}, {}
  local order = gb.arange(0, m, 1, { device = x.device }):expand(b, m):clone()
  for first = 1, k, PANEL do
    local w, height = math.min(PANEL, k - first + 1), m - first + 1
    local lower = made:narrow(2, first, height)
    local panel, moved, rows = eliminate(lower:narrow(3, first, w):clone(), pivot, broken)
    for j = 1, w do pivots[#pivots + 1] = rows[j] and rows[j] + (first - 1) or nil end
    if pivot then
      lower:copy_(reordered(lower, moved))
      order:narrow(2, first, height):copy_(order:narrow(2, first, height):gather(2, moved))
    end
    lower:narrow(3, first, w):copy_(panel)
    local rest = n - first - w + 1
    if rest > 0 then
      local right = lower:narrow(3, first + w, rest)
      local top = inner.linalg_solve_triangular(panel:narrow(2, 1, w), right:narrow(2, 1, w),
        { upper = false, unitriangular = true })
      right:narrow(2, 1, w):copy_(top)
      if height > w then
        right:narrow(2, w + 1, height - w):sub_(panel:narrow(2, w + 1, height - w):matmul(top))
      end
    end
  end
  if #broken > 0 and gb.stack(broken):any():item() then
    fail("linalg.lu: a pivot is 0, and rows are not exchanged; leave out pivot = false")
  end
  return made, order, #pivots > 0 and gb.cat(pivots, 2) or gb.empty({ b, 0 }, { dtype = "int64", device = x.device })
end

-- L and U of what `eliminated` gives: [b, m, k] and [b, k, n].
local function triangles(made, m, n)
  local k = math.min(m, n)
  local L = made:narrow(-1, 1, k):tril(-1) + gb.eye(m, k, { dtype = made.dtype, device = made.device })
  return L, made:narrow(-2, 1, k):triu()
end

-- x of x U^T = b, and of L^T x = b.
local function over_upper(U, b) return transposed(inner.linalg_solve_triangular(U, transposed(b), { upper = true })) end
local function under_lower(L, b)
  return inner.linalg_solve_triangular(transposed(L), b, { upper = true, unitriangular = true })
end

-- The gradient of the reordered matrix, by that of L and U in one. The part of A that is square and the one beside or
-- below it have theirs apart.
local function lu_gradient(made, grad, m, n)
  local k = math.min(m, n)
  local L, U = triangles(made, m, n)
  local gL, gU = grad:narrow(-1, 1, k):tril(-1), grad:narrow(-2, 1, k):triu()
  local L1, U1 = L:narrow(-2, 1, k), U:narrow(-1, 1, k)
  local low = transposed(L1):matmul(gL:narrow(-2, 1, k))
  local high = gU:narrow(-1, 1, k):matmul(transposed(U1))
  local beside, below
  if n > k then
    local g = gU:narrow(-1, k + 1, n - k)
    low = low - g:matmul(transposed(U:narrow(-1, k + 1, n - k)))
    beside = under_lower(L1, g)
  elseif m > k then
    local g = gL:narrow(-2, k + 1, m - k)
    high = high - transposed(L:narrow(-2, k + 1, m - k)):matmul(g)
    below = over_upper(U1, g)
  end
  local whole = under_lower(L1, over_upper(U1, low:tril(-1) + high:triu()))
  if beside then return gb.cat({ whole, beside }, -1) end
  return below and gb.cat({ whole, below }, -2) or whole
end

-- A in a dtype that this computes in: 16 bits only under autocast, whose class is float32.
local function widened(name, A)
  if A.dtype == "float32" or A.dtype == "float64" then return A end
  if A:is_floating_point() and gb.amp.is_enabled() then return A:float() end
  fail(format("linalg.%s: A is %s; this computes in float32 or float64: call A:float() first", name, A.dtype))
end

-- LU, the order of rows and the pivots, with A's batch. Only LU has a gradient.
local lu
function lu(name, A, pivot)
  local m, n = sizes(name, A)
  A = widened(name, A)
  if A:numel() > 0 and not A:detach():isfinite():all():item() then
    fail(format("linalg.%s: A has elements that are not finite", name))
  end
  local batch, order, pivots = A.shape, nil, nil
  batch[#batch], batch[#batch - 1] = nil, nil
  local function like_batch(x, ...)
    local shape = table.move(batch, 1, #batch, 1, {})
    return x:reshape(table.move({ ... }, 1, select("#", ...), #shape + 1, shape))
  end
  local b = 1
  for i = 1, #batch do b = b * batch[i] end
  local factor = gb.Function { name = "lu",
    forward = function(ctx, x)
      local made
      made, order, pivots = gb.amp.disable(eliminated, x:reshape(b, m, n), pivot)
      made = like_batch(made, m, n)
      ctx:save_for_backward(x, made, order)
      return made
    end,
    backward = function(ctx, grad)
      local x, made, rows = ctx:saved_tensors()
      if gb.is_grad_enabled() then made = lu(name, x, pivot) end -- once more, with its history
      local g = gb.amp.disable(lu_gradient, made, grad, m, n):reshape(b, m, n)
      return like_batch(reordered(g, rows:argsort(2)), m, n)
    end }
  local made = factor(A)
  return made, like_batch(order, m), like_batch(pivots, pivots.shape[2])
end

-- Matrices that put the rows of a product in the order of those it was made of.
local function permutation_of(order, like)
  local m = order.shape[order.ndim]
  if m == 0 then return gb.zeros(like.shape, { dtype = like.dtype, device = like.device }):narrow(-1, 1, 0) end
  return transposed(gb.nn.functional.one_hot(order, m)):to(like.dtype)
end

linalg.lu = define("gb.linalg.lu(A: tensor; pivot: bool = true) -> tensor, tensor, tensor: A = P L U: P permutes \z
  rows, L is lower triangular with ones on its diagonal, U upper triangular; without pivot P is empty and A = L U. \z
  Gradients go through L and U. Errors: elements that are not finite; 16-bit floats outside of autocast. Example: \z
  local P, L, U = gb.linalg.lu(gb.tensor({ { 1.0, 2.0 }, { 3.0, 4.0 } }))", "strict", function(A, options)
    local made, order = lu("lu", A, options.pivot)
    local L, U = triangles(made, A.shape[A.ndim - 1], A.shape[A.ndim])
    local P = options.pivot and permutation_of(order, made) or gb.empty(0, { dtype = made.dtype, device = made.device })
    return P, L, U
  end)

linalg.lu_factor = define("gb.linalg.lu_factor(A: tensor; pivot: bool = true) -> tensor, tensor: L without its \z
  diagonal and U in one matrix, and the pivots as int32, as LAPACK counts rows, from 1: at step i rows i and \z
  pivots[i] change places. For lu_solve. Errors: as lu. Example: local LU, pivots = gb.linalg.lu_factor(gb.eye(2) * \z
  4)", "strict",
  function(A, options)
    local made, _, pivots = lu("lu_factor", A, options.pivot)
    if not options.pivot then
      local k = math.min(A.shape[A.ndim - 1], A.shape[A.ndim])
      pivots = gb.arange(0, k, 1, { device = A.device }):expand(table.move({ k }, 1, 1, A.ndim - 1,
        table.move(A.shape, 1, A.ndim - 2, 1, {})))
    end
    local counted = (pivots + 1):to("int32")
    return made, counted:contiguous()
  end)

-- Pivots as [b, k], of which either may be 0.
local function in_batch(pivots)
  local b, shape = 1, pivots.shape
  for i = 1, #shape - 1 do b = b * shape[i] end
  return pivots:reshape(b, shape[#shape])
end

-- The order of rows that swaps by pivots [b, k], from 1, make of m.
local function order_of(name, pivots, m)
  local b, k = pivots.shape[1], pivots.shape[2]
  if pivots:is_floating_point() or pivots.dtype == "bool" then
    fail(format("linalg.%s: pivots are %s; they are integers", name, pivots.dtype))
  end
  local at = pivots:long()
  if at:numel() > 0 and at:lt(1):logical_or(at:gt(m)):any():item() then
    fail(format("linalg.%s: a pivot lies outside of 1 .. %d", name, m))
  end
  local place = gb.arange(0, m, 1, { device = pivots.device }):expand(b, m)
  local order = place:clone()
  for i = 1, k do
    local row, here = at:narrow(2, i, 1) - 1, gb.full({ b, 1 }, i - 1, { dtype = "int64", device = pivots.device })
    order = order:gather(2, place:clone():scatter_(2, here, row):scatter_(2, row, here))
  end
  return order
end

-- X of A X = B, or A^T X = B, by the factors of A.
local function lu_solve(LU, pivots, B, adjoint)
  local n = square("lu_solve", LU)
  if B.ndim < 2 or B.shape[B.ndim - 1] ~= n then
    fail(format("linalg.lu_solve: LU %s and B %s do not fit: B needs as many rows as LU", shape_text(LU),
      shape_text(B)))
  end
  if pivots.ndim ~= LU.ndim - 1 or pivots.shape[pivots.ndim] ~= n then
    fail(format("linalg.lu_solve: LU %s and pivots %s do not fit; pivots are those of lu_factor", shape_text(LU),
      shape_text(pivots)))
  end
  local order = order_of("lu_solve", in_batch(pivots), n):reshape(pivots.shape)
  -- batches broadcast
  local batch, columns, ndim = {}, B:size(-1), math.max(LU.ndim, B.ndim)
  for i = 1, ndim - 2 do
    local at, of = i + LU.ndim - ndim, i + B.ndim - ndim
    local own, other = at > 0 and LU:size(at) or 1, of > 0 and B:size(of) or 1
    if own ~= other and own ~= 1 and other ~= 1 then
      fail(format("linalg.lu_solve: the batches of LU %s and B %s do not broadcast", shape_text(LU), shape_text(B)))
    end
    batch[i] = own == 1 and other or own
  end
  local function whole(...)
    local shape = table.move(batch, 1, #batch, 1, {})
    return table.move({ ... }, 1, select("#", ...), #shape + 1, shape)
  end
  if adjoint then order = order:argsort(-1) end
  local index = order:expand(whole(n)):unsqueeze(-1):expand(whole(n, columns))
  B = B:expand(whole(n, columns))
  if adjoint then
    local y = inner.linalg_solve_triangular(transposed(LU), B, { upper = false })
    return under_lower(LU, y):gather(-2, index)
  end
  local y = inner.linalg_solve_triangular(LU, B:gather(-2, index), { upper = false, unitriangular = true })
  return inner.linalg_solve_triangular(LU, y, { upper = true })
end

linalg.lu_solve = define("gb.linalg.lu_solve(LU: tensor, pivots: tensor, B: tensor; left: bool = true, adjoint: bool \z
  = false) -> tensor: The X of which A X = B, or X A = B where left is false, by what lu_factor made of A; adjoint: \z
  of A's transpose. Errors: shapes that do not fit, pivots that are none, a singular A. Example: local LU, pivots = \z
  gb.linalg.lu_factor(gb.eye(2) * 4) local X = gb.linalg.lu_solve(LU, pivots, gb.ones(2, 1))", "strict",
  function(LU, pivots, B, options)
    if options.left then return lu_solve(LU, pivots, B, options.adjoint) end
    return transposed(lu_solve(LU, pivots, transposed(B), not options.adjoint))
  end)

gb.lu_unpack = define("gb.lu_unpack(LU: tensor, pivots: tensor, unpack_data: bool = true, unpack_pivots: bool = \z
  true) -> tensor, tensor, tensor: P, L and U, as linalg.lu gives them, of what lu_factor made of A; without \z
  unpack_pivots P is empty, without unpack_data L and U are. Errors: pivots that do not fit. Example: local P, L, U = \z
  gb.lu_unpack(gb.linalg.lu_factor(gb.eye(2) * 4))", "strict", function(LU, pivots, unpack_data, unpack_pivots)
    local m, n = sizes("lu_unpack", LU)
    local none = gb.empty(0, { dtype = LU.dtype, device = LU.device })
    if pivots.ndim ~= LU.ndim - 1 or pivots.shape[pivots.ndim] ~= math.min(m, n) then
      fail(format("lu_unpack: LU %s and pivots %s do not fit; pivots are those of lu_factor", shape_text(LU),
        shape_text(pivots)))
    end
    local shape = pivots.shape
    local order = order_of("lu_unpack", in_batch(pivots), m)
    shape[#shape] = m
    local P, L, U = none, none, none
    if unpack_pivots then P = permutation_of(order:reshape(shape), LU) end
    if unpack_data then L, U = triangles(LU, m, n) end
    return P, L, U
  end)

gb.lu_solve = define("gb.lu_solve(B: tensor, LU: tensor, pivots: tensor) -> tensor: As linalg.lu_solve, with B first. \z
  Example: local LU, pivots = gb.linalg.lu_factor(gb.eye(2) * 4) local X = gb.lu_solve(gb.ones(2, 1), LU, pivots)",
  "strict", function(B, LU, pivots) return lu_solve(LU, pivots, B, false) end)

-- ====}

-- {==== Symmetric matrices ====

linalg.ldl_factor = define("gb.linalg.ldl_factor(A: tensor) -> tensor, tensor: LD and pivots of symmetric matrices, \z
  of which the lower triangle is read: P A P^T = L D L^T, L of ones on its diagonal, D of 1 x 1 and 2 x 2 blocks. LD \z
  holds D's diagonal, L below it, and in a 2 x 2 block D's element; the pivots are LAPACK's int32: row i changed \z
  places with row pivots[i], from 1, and two equal ones below 0 are a block whose second row changed. It has no \z
  gradient. Errors: a singular matrix, with its place in the batch; as inv. Example: local LD, pivots = \z
  gb.linalg.ldl_factor(gb.eye(2) * 4)", "strict", function(A) return inner.linalg_ldl_factor(A) end)

linalg.ldl_solve = define("gb.linalg.ldl_solve(LD: tensor, pivots: tensor, B: tensor) -> tensor: The X of which A X = \z
  B, for matrices B, by what ldl_factor made of A; batches broadcast. Only B has a gradient. Errors: shapes that do \z
  not fit, pivots that are none, a singular A. Example: local LD, pivots = gb.linalg.ldl_factor(gb.eye(2) * 4) local \z
  X = gb.linalg.ldl_solve(LD, pivots, gb.ones(2, 1))", "strict",
  function(LD, pivots, B) return inner.linalg_ldl_solve(LD, pivots, B) end)

-- ====}

-- {==== Roots ====

-- By the eigenvalues w and vectors v: v sqrt(w) v^T. Its gradient X solves X R + R X = G for the root R, and so do all
-- that follow: they are finite where eigenvalues are equal, as those of the vectors are not.
local function root_gradient(s, v, grad)
  local g = transposed(v):matmul((grad + transposed(grad)) / 2):matmul(v)
  return v:matmul(g / (s:unsqueeze(-1) + s:unsqueeze(-2))):matmul(transposed(v))
end

local function root_of(A)
  local w, v = inner.linalg_eigh(A, { upper = false })
  local s = w:clamp(0):sqrt()
  return (v * s:unsqueeze(-2)):matmul(transposed(v)), s, v
end

local function anticommutator(x, y) return x:matmul(y) + y:matmul(x) end

-- The X of X R + R X = G, G made symmetric, by the eigenvalues s and vectors v of R, which have no history.
local of_root
of_root = gb.Function { name = "matrix_sqrth_backward",
  forward = function(ctx, R, G, s, v)
    local X = gb.amp.disable(root_gradient, s, v, G)
    ctx:save_for_backward(R, G, s, v, X)
    return X
  end,
  backward = function(ctx, grad)
    local R, G, s, v, X = ctx:saved_tensors()
    if gb.is_grad_enabled() then X = of_root(R, G, s, v) end -- once more, with its history
    local dG = of_root(R, grad, s, v)
    return -gb.amp.disable(anticommutator, X, dG), dG
  end }

local root
root = gb.Function { name = "matrix_sqrth",
  forward = function(ctx, A)
    local y, s, v = gb.amp.disable(root_of, A)
    ctx:save_for_backward(A, y, s, v)
    return y
  end,
  backward = function(ctx, grad)
    local A, R, s, v = ctx:saved_tensors()
    if gb.is_grad_enabled() then R = root(A) end -- once more, with its history
    return of_root(R, grad, s, v)
  end }

linalg.matrix_sqrth = define("gb.linalg.matrix_sqrth(A: tensor) -> tensor: The symmetric positive X of which X X = A, \z
  for symmetric positive definite matrices, of which the lower triangle is read; eigenvalues below 0 count as 0. \z
  Errors: as eigh. Example: print(gb.linalg.matrix_sqrth(gb.tensor({ { 4.0, 0.0 }, { 0.0, 9.0 } })))", "strict",
  function(A)
    square("matrix_sqrth", A)
    return root(widened("matrix_sqrth", A))
  end)

-- ====}
