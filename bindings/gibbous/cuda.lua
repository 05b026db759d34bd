-- cuda.lua - gb.cuda.graph: a training step captured once and replayed; gb.cuda.tune: products timed.

local gb, native = ...
local define, own, private = native.define, native.own, native.private
local format, find, concat, pack, unpack = string.format, string.find, table.concat, table.pack, table.unpack
local math_type = math.type
local cuda = gb.cuda

local function fail(text, ...) native.fail("cuda.graph: " .. format(text, ...)) end -- raises with the recipe's line

local function shape_of(t) return #t.shape == 0 and "scalar" or concat(t.shape, "x") end

-- Where the step runs: on the CUDA device of the first example that lies on one, else on the default device if that is
-- one, else on cuda:0.
local function device_of(examples)
  for _, x in ipairs(examples) do
    if find(x.device, "^cuda") then return x.device end
  end
  local default = gb.get_default_device()
  return find(default, "^cuda") and default or "cuda:0"
end

-- The batch goes into the tensors that the graph reads; a captured step has one shape.
local function bring(static, batch)
  if batch.n ~= #static then fail("the step takes %d inputs, as its examples; got %d", #static, batch.n) end
  gb.no_grad(function()
    for i, x in ipairs(static) do
      local given = batch[i]
      if not gb.is_tensor(given) then fail("input %d is a %s; it takes a tensor, as its example", i, type(given)) end
      if shape_of(given) ~= shape_of(x) or given.dtype ~= x.dtype then
        fail("input %d is %s %s, its example was %s %s; a graph has one shape: make another one, or drop the last, \z
          shorter batch", i, given.dtype,
          shape_of(given), x.dtype, shape_of(x))
      end
      x:copy_(given)
    end
  end)
end

-- Note the step once, and run what was noted.
local function capture(step, static, device)
  local handle = native.capture_begin(device)
  local results = pack(pcall(step, unpack(static)))
  handle:finish(results[1])
  if not results[1] then
    handle:close()
    error(results[2], 0)
  end
  return handle, results
end

-- What is private of a graph: step, static (the tensors that it reads), device, warm (the step ran once), handle and
-- results (once it is captured).
local Graph = { __name = "gb.cuda.graph" }
Graph.__index = Graph
native.classes.graph = Graph
Graph.__tostring = function(self)
  local mine = private(self, "graph")
  return mine and format("graph of %d inputs (%s)", #mine.static, mine.handle and "captured" or "not captured yet") or
    "graph"
end

Graph.replay = define("graph:replay(inputs...: any) -> any: What calling the graph does: the step on these inputs, \z
  replayed once it is captured. Example: if gb.cuda.is_available() then local y = gb.cuda.graph(function(v) return v \z
  * 2 end, { gb.ones(2) }):replay(gb.ones(2)) end", "strict",
  function(self, ...)
    local mine = private(self, "graph")
    bring(mine.static, pack(...))
    if not mine.warm then
      mine.warm = true
      return mine.step(unpack(mine.static))
    end
    if mine.handle then mine.handle:replay()
    else mine.handle, mine.results = capture(mine.step, mine.static, mine.device) end
    return unpack(mine.results, 2, mine.results.n)
  end)
Graph.__call = Graph.replay

cuda.graph = define("gb.cuda.graph(step: function, examples: tensors) -> graph: An object to call as step(...) is, \z
  which does what the step does to tensors, in one launch: the first call runs the step as it is, the second \z
  captures it, the others replay it on the values they are given. The examples say the shapes and dtypes of the \z
  inputs. What changes from step to step is followed: learning rate and weight decay, random numbers, the scale. A \z
  replay runs no Lua: schedules, printing and reading belong outside, and the results are the same tensors again, \z
  with new values. Errors: another shape, reading a value in the step, no CUDA device. Example: if \z
  gb.cuda.is_available() then local double = gb.cuda.graph(function(v) return v * 2 end, { gb.ones(2) }) end", "strict",
  function(step, examples)
  if gb.is_tensor(examples) then fail("the examples are a list of tensors: gb.cuda.graph(step, { x, y })") end
  local static, device = {}, device_of(examples)
  for i, x in ipairs(examples) do static[i] = x:detach():to(device):clone() end
  return own(setmetatable({}, Graph), "graph", { step = step, static = static, device = device })
end)

-- {---- tuning ----

local is_tuning = false
local function fail_tune(text, ...) native.fail("cuda.tune: " .. format(text, ...)) end

-- One shape { rows, inputs, outputs, dtype = } has its sizes.
local function check_layer(shape)
  for i = 1, 3 do
    local size = rawget(shape, i)
    if math_type(size) ~= "integer" or size < 1 then
      fail_tune("a shape is { rows, inputs, outputs, dtype = \"bfloat16\" } with sizes from 1 on, got %s",
        size == nil and "less than three" or native.shown(size))
    end
  end
end

-- The products of a linear layer, forward and backward, at the sizes of one shape.
local function run_layer(sizes, device)
  local dtype = rawget(sizes, "dtype") or "bfloat16"
  local function made(...) return gb.randn(...):to(device):to(dtype):requires_grad_(true) end
  local y = gb.nn.functional.linear(made(sizes[1], sizes[2]), made(sizes[3], sizes[2]), made(sizes[3]))
  y:backward(gb.ones_like(y))
end

-- Of all shapes, with the recipe's random stream left where it was.
local function run_layers(shapes, device)
  for _, shape in ipairs(shapes) do
    if type(shape) ~= "table" then
      fail_tune("a list of shapes, each { rows, inputs, outputs }; got a %s", type(shape))
    end
    check_layer(shape)
  end
  local state = gb.get_rng_state()
  local ok, why = pcall(function()
    for _, shape in ipairs(shapes) do run_layer(shape, device) end
  end)
  gb.set_rng_state(state)
  if not ok then error(why, 0) end
end

cuda.tune = define("gb.cuda.tune(work: function|list; file: path, device?: int|device) -> table: Run the work, time \z
  what cuBLASLt offers for each product in it, take the fastest, and write these choices to a file that gb.cuda.tuned \z
  or GIBBOUS_CUDA_TUNED reads in later runs: they then multiply alike, and need not be timed. The work is a function, \z
  such as one training step, or a list of linear layers { rows, inputs, outputs, dtype = \"bfloat16\" }, which are \z
  run forward and backward. The file has all choices for this device, those that were read before too. Results: \z
  timed, improved (products that another algorithm than the library's first is faster for by 2 % and more), before \z
  and after (seconds of one launch of each), choices. Another algorithm adds up in another order, so the bits of a \z
  tuned run are its own. Errors: there is no CUDA device; a graph is captured; what the \z
  work raises, and what was timed until then stays in use. Example: if \z
  gb.cuda.is_available() then gb.cuda.tune({ { 64, 32, 16 } }, { file = os.tmpname() }) end", "none",
  function(work, options)
  local device = options.device or device_of {}
  if math_type(device) == "integer" then device = "cuda:" .. device end
  local why = native.why_unwritable(options.file)
  if why then fail_tune("%s", why) end
  local ok, text
  if is_tuning then fail_tune("the work calls it again") end
  native.tune(device, true)
  is_tuning = true
  if type(work) == "function" then ok, text = pcall(work) else ok, text = pcall(run_layers, work, device) end
  native.tune(device, false)
  is_tuning = false
  if not ok then error(text, 0) end
  return native.tuned_write(device, options.file)
end)

-- ----}
