-- nn/weights.lua - weights that are computed from others before every forward: weight_norm and spectral_norm, as
-- PyTorch's nn.utils has them.
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
  rawset(values_of(module), "forward", forward)
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
    rawset(values_of(module), "forward", nil)
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
