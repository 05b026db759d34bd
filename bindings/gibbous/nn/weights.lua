-- nn/weights.lua - weights that are computed from others before every forward: weight_norm, spectral_norm and
-- orthogonal, as PyTorch's nn.utils has them.
--
-- The module keeps what is trained under names of its own, and under the old name the weight that the last forward
-- used, a plain tensor. A module's forward is replaced once, however many of its weights are computed.

local gb, native = ...
local fail, define = native.fail, native.define -- fail raises with the recipe's line
local nn = gb.nn
local utils = nn.utils
local values_of, class_of = native.values_of, native.class_of
local format, sort, setmetatable, rawset, rawget, pairs = string.format, table.sort, setmetatable, rawset, rawget, pairs

local computed = setmetatable({}, { __mode = "k" }) -- module -> name of a weight -> { kind, compute }

local function forward(self, ...)
  local names = {}
  for name in pairs(computed[self]) do names[#names + 1] = name end
  sort(names)
  for i = 1, #names do rawset(values_of(self), names[i], computed[self][names[i]].compute(self)) end
  return class_of(self).forward(self, ...)
end

-- From now on the weight is what compute(module) gives. The parameter that it was stays, under another name.
local function replace(who, module, name, kept, compute)
  local weight = rawget(values_of(module), name)
  if computed[module] and computed[module][name] then
    fail(format("%s: %s.%s is computed by %s already", who, class_of(module).__name, name, computed[module][name].kind))
  end
  if not native.is_parameter(weight) then
    fail(format("%s: %s has no parameter '%s'", who, class_of(module).__name, name))
  end
  computed[module] = computed[module] or {}
  computed[module][name] = { kind = who, compute = compute }
  module[name] = nil
  module[kept] = weight
  native.replace_forward(module, forward)
end

-- The weight as it is now becomes a parameter again; those it was made of go.
local function restore(who, kind, module, name, others)
  local own = computed[module] and computed[module][name]
  if not own or own.kind ~= kind then
    fail(format("%s: %s.%s is not computed by %s", who, class_of(module).__name, name, kind))
  end
  local weight = gb.no_grad(function() return own.compute(module):detach():clone() end)
  computed[module][name] = nil
  if next(computed[module]) == nil then
    computed[module] = nil
    native.replace_forward(module, nil)
  end
  for i = 1, #others do module[name .. others[i]] = nil end
  rawset(values_of(module), name, nil)
  module[name] = nn.Parameter(weight)
  return module
end

-- A dim of a weight from 1.
local function dim_of(who, weight, dim)
  if dim < 0 then dim = weight.ndim + 1 + dim end
  if dim < 1 or dim > weight.ndim then
    fail(format("%s: the weight has %d dimensions, there is no dimension %d", who, weight.ndim, dim))
  end
  return dim
end

-- {==== weight_norm ====

-- The norm over all dims but one, kept as dims of size 1.
local function norm_except(v, dim)
  local others = {}
  for i = 1, v.ndim do
    if i ~= dim then others[#others + 1] = i end
  end
  if #others == 0 then return v:abs() end
  return v:norm(2, others, { keepdim = true })
end

utils.weight_norm = define("gb.nn.utils.weight_norm(module: module; name: string = \"weight\", dim: dim = 1) -> \z
  module: Train the length and the direction of a weight apart (Salimans, Kingma 2016): name_g * name_v / \z
  norm(name_v), norms over all dimensions but dim. Optimizers made before lack name_g. Returns the module. Errors: a \z
  module without this parameter. Example: local layer = gb.nn.utils.weight_norm(gb.nn.Linear(4, 2))",
  "strict", function(module, o)
    local name, g, v = o.name, o.name .. "_g", o.name .. "_v"
    local weight, dim = rawget(values_of(module), name), o.dim
    if gb.is_tensor(weight) then dim = dim_of("weight_norm", weight, dim) end
    local function compute(self)
      return self[v] * (self[g] / norm_except(self[v], dim))
    end
    replace("weight_norm", module, name, v, compute)
    module[g] = nn.Parameter(gb.no_grad(function() return norm_except(module[v], dim):detach():clone() end))
    rawset(values_of(module), name, gb.no_grad(compute, module))
    return module
  end)

utils.remove_weight_norm = define("gb.nn.utils.remove_weight_norm(module: module; name: string = \"weight\") -> \z
  module: The weight that weight_norm computed as a parameter again. Errors: a weight that weight_norm does not \z
  compute. Example: gb.nn.utils.remove_weight_norm(gb.nn.utils.weight_norm(gb.nn.Linear(4, 2)))", "strict",
  function(module, o) return restore("remove_weight_norm", "weight_norm", module, o.name, { "_g", "_v" }) end)

-- ====}

-- {==== spectral_norm ====

-- A weight as a matrix, its rows along dim.
local function matrix_of(weight, dim)
  return (dim == 1 and weight or weight:transpose(1, dim)):reshape(weight:size(dim), -1)
end

local function normalized(x, eps) return x / x:norm():clamp(eps) end

utils.spectral_norm = define("gb.nn.utils.spectral_norm(module: module; name: string = \"weight\", \z
  n_power_iterations: size = 1, eps: number = 1e-12, dim: dim = 1) -> module: Divide a weight by its largest \z
  singular value (Miyato et al. 2018), which each forward in training brings nearer by power iterations: name_orig \z
  is trained, name_u and name_v are buffers. Returns the module. Errors: a module without this parameter. Example: \z
  local layer = gb.nn.utils.spectral_norm(gb.nn.Linear(4, 2))", "strict", function(module, o)
    local name, orig, u, v = o.name, o.name .. "_orig", o.name .. "_u", o.name .. "_v"
    local weight, dim = rawget(values_of(module), name), o.dim
    if gb.is_tensor(weight) then dim = dim_of("spectral_norm", weight, dim) end
    local function iterate(self, matrix)
      for _ = 1, o.n_power_iterations do
        self[v]:copy_(normalized(matrix:t():matmul(self[u]), o.eps))
        self[u]:copy_(normalized(matrix:matmul(self[v]), o.eps))
      end
    end
    local function compute(self)
      local matrix = matrix_of(self[orig], dim)
      if self.training and not gb.is_recomputing() then gb.no_grad(iterate, self, matrix:detach()) end
      -- backward needs these; the next forward writes into the buffers
      local left, right = self[u]:clone(), self[v]:clone()
      return self[orig] / left:dot(matrix:matmul(right))
    end
    replace("spectral_norm", module, name, orig, compute)
    local like = matrix_of(module[orig], dim)
    local made = { dtype = weight.dtype, device = weight.device }
    module:register_buffer(u, normalized(gb.randn({ like:size(1) }, made), o.eps))
    module:register_buffer(v, normalized(gb.randn({ like:size(2) }, made), o.eps))
    rawset(values_of(module), name, weight:detach())
    return module
  end)

utils.remove_spectral_norm = define("gb.nn.utils.remove_spectral_norm(module: module; name: string = \"weight\") -> \z
  module: The weight that spectral_norm computed as a parameter again. Errors: a weight that spectral_norm does not \z
  compute. Example: gb.nn.utils.remove_spectral_norm(gb.nn.utils.spectral_norm(gb.nn.Linear(4, 2)))", "strict",
  function(module, o)
    local training = module.training
    module.training = false -- no more iterations
    local back = restore("remove_spectral_norm", "spectral_norm", module, o.name, { "_orig", "_u", "_v" })
    module.training = training
    return back
  end)

-- ====}

-- {==== orthogonal ====

-- An orthogonal matrix of what is trained, which is tall or square: each map of the lower triangle.
local orthogonal_maps = {
  matrix_exp = function(skew) return gb.linalg.matrix_exp(skew) end,
  cayley = function(skew)
    local eye = gb.eye(skew:size(-1), { dtype = skew.dtype, device = skew.device })
    return gb.linalg.solve(eye - skew * 0.5, eye + skew * 0.5)
  end,
}

local function orthogonal_of(map, x)
  local n, k = x:size(-2), x:size(-1)
  if map == "householder" then
    local vectors = x:tril(-1)
    local q = gb.linalg.householder_product(vectors, ((vectors * vectors):sum(-2) + 1):reciprocal() * 2)
    return q * x:detach():diagonal(0, -2, -1):trunc():unsqueeze(-2)
  end
  local lower = x:tril()
  if n ~= k then
    local shape = x.shape
    shape[#shape] = n - k
    lower = gb.cat({ lower, x:new_zeros(shape) }, -1)
  end
  local q = orthogonal_maps[map](lower - lower:transpose(-2, -1))
  return n ~= k and q:narrow(-1, 1, k) or q
end

-- The orthogonal factor of a weight, with R's diagonal above 0.
local function orthogonalized(x)
  local q, r = gb.linalg.qr(x)
  return q * gb.where(r:diagonal(0, -2, -1):lt(0), -1.0, 1.0):to(q.dtype):unsqueeze(-2)
end

-- Vectors of reflections whose product is an orthogonal matrix q, with signs on the diagonal: by columns, from left to
-- right.
local function reflections_of(q)
  local n, k = q:size(-2), q:size(-1)
  local rest, vectors = q:clone(), q:new_zeros(q.shape)
  for i = 1, k do
    local column = rest:narrow(-1, i, 1):narrow(-2, i, n - i + 1)
    local first = column:narrow(-2, 1, 1)
    local sign = gb.where(first:lt(0), -1.0, 1.0):to(q.dtype)
    local v = column:clone()
    v:narrow(-2, 1, 1):add_(sign)
    v = v / v:narrow(-2, 1, 1):clone()
    local part = rest:narrow(-2, i, n - i + 1)
    part:sub_(v * (2 / (v * v):sum(-2, { keepdim = true })) * (v:transpose(-2, -1):matmul(part)))
    vectors:narrow(-1, i, 1):narrow(-2, i, n - i + 1):copy_(v)
    vectors:narrow(-1, i, 1):narrow(-2, i, 1):copy_(-sign)
  end
  return vectors
end

utils.orthogonal = define("gb.nn.utils.orthogonal(module: module, name: string = \"weight\"; orthogonal_map?: \z
  \"matrix_exp\"|\"cayley\"|\"householder\", use_trivialization: bool = true) -> module: Keep a weight orthogonal: \z
  its columns, or its rows where it has more of those, are orthonormal. name_orig is trained; the weight is what \z
  orthogonal_map makes of it, matrix_exp of square ones and householder of others unless given. use_trivialization: \z
  for the first two maps the weight is name_base, a buffer, times that, so that it begins where it was, made \z
  orthogonal; else its values are taken for name_orig. Returns the module. Errors: no parameter of two dimensions or \z
  more. Example: local layer = gb.nn.utils.orthogonal(gb.nn.Linear(4, 4))", "strict",
  function(module, name, o)
    local weight = rawget(values_of(module), name)
    if native.is_parameter(weight) and weight.ndim < 2 then
      fail(format("orthogonal: the weight has %d dimensions; it takes a matrix or a batch of them", weight.ndim))
    end
    if native.is_parameter(weight) and weight.dtype ~= "float32" and weight.dtype ~= "float64" then
      fail(format("orthogonal: the weight is %s; linear algebra takes float32 and float64", weight.dtype))
    end
    local orig, base = name .. "_orig", name .. "_base"
    local turned = gb.is_tensor(weight) and weight:size(-2) < weight:size(-1)
    local map = o.orthogonal_map
      or gb.is_tensor(weight) and weight:size(-2) ~= weight:size(-1) and "householder" or "matrix_exp"
    local function tall(x) return turned and x:transpose(-2, -1) or x end
    local based = o.use_trivialization and map ~= "householder"
    local function compute(self)
      local q = orthogonal_of(map, tall(self[orig]))
      if based then q = self[base]:matmul(q) end
      return tall(q)
    end
    -- what can fail comes before the layer is changed
    local q = native.is_parameter(weight) and gb.no_grad(function()
      local found = (based or map == "householder") and orthogonalized(tall(weight))
      if not found then return nil end
      if not based then return reflections_of(found) end
      local n, k = found:size(-2), found:size(-1)
      if n == k then return found end -- else all of a square matrix, of which these are the first columns
      local whole = gb.linalg.qr(found, { mode = "complete" })
      return gb.cat({ found, whole:narrow(-1, k + 1, n - k) }, -1)
    end)
    replace("orthogonal", module, name, orig, compute)
    gb.no_grad(function()
      if based then
        local n, k = q:size(-2), weight:size(turned and -2 or -1)
        module:register_buffer(base, q)
        local eye = gb.eye(n, k, { dtype = weight.dtype, device = weight.device })
        weight:copy_(tall(eye:neg():expand(tall(weight).shape)))
      elseif q then weight:copy_(tall(q))
      end
      rawset(values_of(module), name, compute(module))
    end)
    return module
  end)

-- ====}
