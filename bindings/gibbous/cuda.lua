-- cuda.lua - gb.cuda.graph: a training step captured once and replayed.

local gb, native = ...
local cuda = gb.cuda

local function fail(text, ...) native.fail("cuda.graph: " .. text:format(...)) end -- raises with the recipe's line

local function shape_of(t) return #t.shape == 0 and "scalar" or table.concat(t.shape, "x") end

-- Where the step runs: on the CUDA device of the first example that lies on one, else on the default device if that is one, else on cuda:0.
local function device_of(examples)
  for _, x in ipairs(examples) do
    if gb.is_tensor(x) and x.device:find("^cuda") then return x.device end
  end
  local default = gb.get_default_device()
  return default:find("^cuda") and default or "cuda:0"
end

-- The batch goes into the tensors that the graph reads; a captured step has one shape.
local function bring(static, batch)
  if batch.n ~= #static then fail("the step takes %d inputs, as its examples; got %d", #static, batch.n) end
  gb.no_grad(function()
    for i, x in ipairs(static) do
      local given = batch[i]
      if not gb.is_tensor(given) then fail("input %d is a %s; it takes a tensor, as its example", i, type(given)) end
      if shape_of(given) ~= shape_of(x) or given.dtype ~= x.dtype then
        fail("input %d is %s %s, its example was %s %s; a graph has one shape: make another one, or drop the last, shorter batch", i, given.dtype,
          shape_of(given), x.dtype, shape_of(x))
      end
      x:copy_(given)
    end
  end)
end

-- Note the step once, and run what was noted.
local function capture(step, static, device)
  local handle = native.capture_begin(device)
  local results = table.pack(pcall(step, table.unpack(static)))
  handle:finish(results[1])
  if not results[1] then
    handle:close()
    error(results[2], 0)
  end
  return handle, results
end

-- gb.cuda.graph(step: function, examples: list) -> function: A function that does what step(...) does to tensors, in one launch: the first call runs
-- the step as it is, the second captures it, the others replay it on the values they are given. The examples say the shapes and dtypes of the
-- inputs. What changes from step to step is followed: learning rate and weight decay, random numbers, the scale. A replay runs no Lua: schedules,
-- printing and reading belong outside, and the results are the same tensors again, with new values. Errors: another shape, reading a value in the
-- step, no CUDA device. Example: if gb.cuda.is_available() then local double = gb.cuda.graph(function(x) return x * 2 end, { gb.ones(2) }) end
function cuda.graph(step, examples)
  if type(step) ~= "function" then fail("the step is a %s; it must be a function", type(step)) end
  if type(examples) ~= "table" or gb.is_tensor(examples) then fail("the examples are a list of tensors: gb.cuda.graph(step, { x, y })") end
  local static, device = {}, device_of(examples)
  for i, x in ipairs(examples) do
    if not gb.is_tensor(x) then fail("example %d is a %s; it must be a tensor", i, type(x)) end
    static[i] = x:detach():to(device):clone()
  end
  local warm, handle, results = false, nil, nil
  return function(...)
    bring(static, table.pack(...))
    if not warm then
      warm = true
      return step(table.unpack(static))
    end
    if handle then handle:replay() else handle, results = capture(step, static, device) end
    return table.unpack(results, 2, results.n)
  end
end
