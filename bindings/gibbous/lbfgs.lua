-- lbfgs.lua - gb.optim.LBFGS: the limited-memory quasi-Newton method (Nocedal, Wright: Numerical Optimization, 7.2),
-- with PyTorch's options and stopping rules, and its line search by the strong Wolfe conditions (3.5).
--
-- All parameters count as one vector. A step asks a closure for losses and gradients as often as it needs; what one
-- step learned of the curvature serves the next. Numbers that decide come to the host, so a step waits for the device.
-- Left out: 16-bit parameters, which cannot hold such steps, and groups.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format = string.format
local abs, max, min, sqrt, huge = math.abs, math.max, math.min, math.sqrt, math.huge
local no_grad, enable_grad, is_tensor = gb.no_grad, gb.enable_grad, gb.is_tensor

-- What is private of one: params, options, numel, and what steps remember: iterations, evaluations, direction, length,
-- gradient, loss, diagonal, and the pairs { change of the gradient, step, 1 / their product } from the oldest on.
local LBFGS = { __name = "gb.optim.LBFGS" }
LBFGS.__index = LBFGS
native.classes.LBFGS = LBFGS
LBFGS.__tostring = function(self)
  local mine = private(self, "lbfgs")
  return mine and format("LBFGS (%d parameters, %d iterations)", #mine.params, mine.iterations) or "LBFGS"
end

-- {==== parameters as one vector ====

-- The gradients of all parameters, one after another; of those without one zeros.
local function gather(mine)
  local parts = {}
  for i, p in ipairs(mine.params) do
    local g = p.grad
    if g then native.check_scales("LBFGS", { g }) end
    parts[i] = g and g:detach():reshape(-1) or p:new_zeros(p:numel())
  end
  local all = gb.cat(parts, 1)
  return mine.options.maximize and -all or all
end

-- Go this far along the direction.
local function move(mine, direction, length)
  local at = 1
  for _, p in ipairs(mine.params) do
    local n = p:numel()
    if n > 0 then p:add_((direction:narrow(1, at, n) * length):reshape(p.shape):to(p.dtype)) end
    at = at + n
  end
end

local function largest(x) return x:abs():amax():item() end
local function inner(x, y) return x:dot(y):item() end

-- The loss at the parameters and what the closure returned for it.
local function evaluate(mine, closure)
  local result = enable_grad(closure)
  local loss = is_tensor(result) and result:numel() == 1 and result:item() or result
  if type(loss) ~= "number" then
    fail(format("LBFGS:step: the closure must return the loss, a tensor of one element; it returned %s",
      is_tensor(result) and format("a tensor of %d elements", result:numel()) or "a " .. type(result)))
  end
  mine.evaluations = mine.evaluations + 1
  return mine.options.maximize and -loss or loss, result
end

-- ====}

-- {==== the line search ====

-- The lowest point between low and high of the cubic through two points a, b = { at, loss, slope }.
local function cubic(a, b, low, high)
  if a.at > b.at then a, b = b, a end
  local d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.at - b.at)
  local square = d1 * d1 - a.slope * b.slope
  if not (square >= 0) then return (low + high) / 2 end
  local d2 = sqrt(square)
  local at = b.at - (b.at - a.at) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
  return min(max(at, low), high)
end

local ARMIJO, CURVATURE = 1e-4, 0.9

-- Is the loss at a point too high, seen from the start?
local function too_high(start, point) return point.loss > start.loss + ARMIJO * point.at * start.slope end
local function is_flat(start, point) return abs(point.slope) <= -CURVATURE * start.slope end

-- Points until two of them have a good one between them: returns these two, or one that is good itself, and how many
-- were tried after the first.
local function bracket(start, length, try, most)
  local before, here, count = start, try(length), 0
  while count < most do
    if too_high(start, here) or (count > 1 and here.loss >= before.loss) then return before, here, count end
    if is_flat(start, here) then return here, nil, count end
    if here.slope >= 0 then return before, here, count end
    local next_at = cubic(before, here, here.at + 0.01 * (here.at - before.at), here.at * 10)
    before, here, count = here, try(next_at), count + 1
  end
  return start, here, count
end

-- The point to try between two: the cubic's, kept a tenth away from the ends once progress is small twice.
local function between(a, b, slow)
  local low, high = min(a.at, b.at), max(a.at, b.at)
  local at, margin = cubic(a, b, low, high), 0.1 * (high - low)
  if min(high - at, at - low) >= margin then return at, false end
  if not (slow or at >= high or at <= low) then return at, true end
  return abs(at - high) < abs(at - low) and high - margin or low + margin, false
end

-- The point that the strong Wolfe conditions are content with, or the lowest that was found.
local function search(start, length, try, most, scale, tolerance)
  local low, high, count = bracket(start, length, try, most)
  if not high then return low end
  if low.loss > high.loss then low, high = high, low end
  local slow = false
  while count < most and abs(high.at - low.at) * scale >= tolerance do
    local at
    at, slow = between(low, high, slow)
    local point = try(at)
    count = count + 1
    if too_high(start, point) or point.loss >= low.loss then
      high = point
      if high.loss < low.loss then low, high = high, low end
    else
      local done = is_flat(start, point)
      if not done and point.slope * (high.at - low.at) >= 0 then high = low end
      low = point
      if done then break end
    end
  end
  return low
end

-- ====}

-- {==== a step ====

-- Remember the last step and how it changed the gradient, where they say that the loss curves upwards.
local function learn(mine, gradient)
  local change, step = gradient - mine.gradient, mine.direction * mine.length
  local product = inner(change, step)
  if not (product > 1e-10) then return end
  local pairs_ = mine.pairs
  if #pairs_ == mine.options.history_size then table.remove(pairs_, 1) end
  pairs_[#pairs_ + 1] = { change = change, step = step, rate = 1 / product }
  mine.diagonal = product / inner(change, change)
end

-- The direction: the gradient turned around and multiplied by the inverse Hessian that the pairs stand for.
local function direction_of(mine, gradient)
  local y, shares, list = -gradient, {}, mine.pairs
  for i = #list, 1, -1 do
    shares[i] = inner(list[i].step, y) * list[i].rate
    y = y - list[i].change * shares[i]
  end
  y = y * mine.diagonal
  for i = 1, #list do
    y = y + list[i].step * (shares[i] - inner(list[i].change, y) * list[i].rate)
  end
  return y
end

-- Move along the direction by the line search; returns the loss and the gradient there.
local function search_step(mine, closure, loss, gradient, slope, length, most)
  local saved = {}
  for i, p in ipairs(mine.params) do saved[i] = p:detach():clone() end
  local function try(at)
    move(mine, mine.direction, at)
    local found = evaluate(mine, closure)
    local g = gather(mine)
    for i, p in ipairs(mine.params) do p:copy_(saved[i]) end
    return { at = at, loss = found, gradient = g, slope = inner(g, mine.direction) }
  end
  local start = { at = 0, loss = loss, gradient = gradient, slope = slope }
  local point = search(start, length, try, most, largest(mine.direction), mine.options.tolerance_change)
  mine.length = point.at
  move(mine, mine.direction, point.at)
  return point.loss, point.gradient
end

-- Iterations until one of the limits or tolerances is met.
local function iterate(mine, closure, loss, gradient)
  local o, first = mine.options, mine.evaluations - 1
  local most = o.max_eval or o.max_iter * 5 // 4
  for k = 1, o.max_iter do
    mine.iterations = mine.iterations + 1
    if mine.iterations == 1 then mine.pairs, mine.diagonal = {}, 1
    else learn(mine, gradient) end
    mine.direction = mine.iterations == 1 and -gradient or direction_of(mine, gradient)
    local before = loss
    mine.gradient, mine.loss = gradient, loss
    mine.length = mine.iterations == 1 and min(1, 1 / gradient:abs():sum():item()) * o.lr or o.lr
    local slope = inner(gradient, mine.direction)
    if not (slope <= -o.tolerance_change) then return end
    if o.line_search_fn then
      loss, gradient = search_step(mine, closure, loss, gradient, slope, mine.length,
        most - (mine.evaluations - first))
    else
      move(mine, mine.direction, mine.length)
      if k < o.max_iter then loss, gradient = evaluate(mine, closure), gather(mine) end
    end
    if mine.evaluations - first >= most or largest(gradient) <= o.tolerance_grad
      or largest(mine.direction) * abs(mine.length) <= o.tolerance_change or abs(loss - before) < o.tolerance_change
      or not (abs(loss) < huge) then return end
  end
end

LBFGS.step = define("LBFGS:step(closure: function) -> any: Up to max_iter iterations. closure() forgets the \z
  gradients, computes the loss, calls backward and returns the loss; it is called several times. Returns what its \z
  first call returned. Where the first loss or gradient is not finite nothing is changed. Errors: a closure that \z
  returns no loss. Example: local w = gb.ones(2):requires_grad_() local opt = gb.optim.LBFGS({ w }) \z
  opt:step(function() w.grad = nil \z
  local loss = w:square():sum() loss:backward() return loss end)", "strict", function(self, closure)
  local mine = private(self, "lbfgs")
  if mine.running then fail("LBFGS:step: the closure calls step of the optimizer that called it") end
  mine.running = true
  local _ <close> = setmetatable({}, { __close = function() mine.running = false end })
  local loss, result = evaluate(mine, closure)
  no_grad(function()
    local gradient = gather(mine)
    local top = gradient:numel() > 0 and largest(gradient) or 0
    if abs(loss) < huge and top < huge and top > mine.options.tolerance_grad then
      iterate(mine, closure, loss, gradient)
    end
  end)
  return result
end)

LBFGS.zero_grad = define("LBFGS:zero_grad(): Forget the gradients of all parameters. Example: gb.optim.LBFGS({ \z
  gb.ones(2):requires_grad_() }):zero_grad()", "strict", function(self)
  for _, p in ipairs(private(self, "lbfgs").params) do p.grad = nil end
end)

-- ====}

-- {==== state ====

local NUMBERS, VECTORS = { "iterations", "evaluations", "length", "loss", "diagonal" }, { "direction", "gradient" }

LBFGS.state_dict = define("LBFGS:state_dict() -> table: What steps remember (copies). Example: local state = \z
  gb.optim.LBFGS({ gb.ones(2):requires_grad_() }):state_dict()", "strict", function(self)
  local mine, state = private(self, "lbfgs"), { kind = "LBFGS", pairs = {} }
  for _, name in ipairs(NUMBERS) do state[name] = mine[name] end
  for _, name in ipairs(VECTORS) do state[name] = mine[name] and mine[name]:clone() end
  for i, pair in ipairs(mine.pairs) do
    state.pairs[i] = { change = pair.change:clone(), step = pair.step:clone(), rate = pair.rate }
  end
  return state
end)

-- A vector of a state as long as all parameters together, on their device.
local function loaded(mine, name, value)
  if not is_tensor(value) or value.ndim ~= 1 or value:numel() ~= mine.numel then
    fail(format("load_state_dict: %s of the state is no vector of %d elements, as many as the parameters have", name,
      mine.numel))
  end
  local like = mine.params[1]
  return value:detach():to(like.device):clone()
end

LBFGS.load_state_dict = define("LBFGS:load_state_dict(state: tree): Go on from what state_dict gave; everything is \z
  checked before anything is changed. Errors: a state of another kind, or of other parameters. Example: local opt = \z
  gb.optim.LBFGS({ gb.ones(2):requires_grad_() }) opt:load_state_dict(opt:state_dict())", "strict",
  function(self, state)
    local mine, new = private(self, "lbfgs"), { pairs = {} }
    if state.kind ~= "LBFGS" or type(state.pairs) ~= "table" or math.type(state.iterations) ~= "integer"
      or math.type(state.evaluations) ~= "integer" then
      fail("load_state_dict takes what an LBFGS's state_dict gave")
    end
    for _, name in ipairs(NUMBERS) do
      new[name] = state[name]
      if type(new[name]) ~= "number" and (new[name] ~= nil or state.iterations > 0) then
        fail(format("load_state_dict: %s of the state is no number", name))
      end
    end
    for _, name in ipairs(VECTORS) do
      if state[name] ~= nil or state.iterations > 0 then new[name] = loaded(mine, name, state[name]) end
    end
    for i, pair in ipairs(state.pairs) do
      if type(pair) ~= "table" or type(pair.rate) ~= "number" then
        fail(format("load_state_dict: pair %d of the state is none", i))
      end
      new.pairs[i] = { change = loaded(mine, "a pair", pair.change), step = loaded(mine, "a pair", pair.step),
        rate = pair.rate }
    end
    for name, value in next, new do mine[name] = value end
  end)

-- ====}

-- The parameters that LBFGS can move, as a list of our own.
local function parameters_of(given)
  if is_tensor(given) then given = { given } end
  if type(given) ~= "table" or gb.nn.is_module(given) then
    fail("LBFGS: params is a list of tensors, as model:parameters() gives")
  end
  local params, seen = copy(given), {}
  if #params == 0 then
    fail(params.params and "LBFGS: it has no groups; give a list of tensors"
      or "LBFGS: the list of parameters is empty")
  end
  for i, p in ipairs(params) do
    if not is_tensor(p) then
      fail(format("LBFGS: element %d of the list is a %s; it has no groups, only a list of tensors", i, type(p)))
    end
    if p.dtype ~= "float32" and p.dtype ~= "float64" then
      fail(format("LBFGS: parameter %d is %s; its steps need float32 or float64: use 32-true or a mixed precision", i,
        p.dtype))
    end
    if seen[p] then fail(format("LBFGS: parameters %d and %d of the list are the same tensor", seen[p], i)) end
    if p.device ~= params[1].device then
      fail(format("LBFGS: parameter %d is on %s, the first on %s; all are one vector", i, p.device, params[1].device))
    end
    seen[p] = i
  end
  return params
end

gb.optim.LBFGS = define("gb.optim.LBFGS(params: any; lr: number = 1, max_iter: int = 20, max_eval?: int, \z
  tolerance_grad: number = 1e-7, tolerance_change: number = 1e-9, history_size: int = 100, \z
  line_search_fn?: \"strong_wolfe\", maximize: bool = false) -> lbfgs: L-BFGS (Liu, Nocedal 1989), for functions that \z
  are the same at every call: a step takes a closure. max_eval: calls of it in a step, 5/4 max_iter unless given. No \z
  GradScaler takes it: a line search compares losses and slopes across calls, which a scale that changes would undo. \z
  Errors: groups, 16-bit parameters, options out of their bounds. Example: local opt = gb.optim.LBFGS({ \z
  gb.ones(2):requires_grad_() }, { line_search_fn = \"strong_wolfe\" })", "strict", function(params, options)
  for name, least in next, { lr = 0, max_iter = 1, max_eval = 1, tolerance_grad = 0, tolerance_change = 0,
    history_size = 1 } do
    local value = options[name]
    if value and not (value >= least and value < huge) then
      fail(format("LBFGS: '%s' is %s; it must be at least %d", name, native.shown(value), least))
    end
  end
  local mine = { params = parameters_of(params), options = copy(options), numel = 0, iterations = 0, evaluations = 0,
    pairs = {} }
  for _, p in ipairs(mine.params) do mine.numel = mine.numel + p:numel() end
  return own(setmetatable({}, LBFGS), "lbfgs", mine)
end)
