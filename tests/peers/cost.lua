-- cost.lua - gibbous tests/peers/cost.lua RECIPE STEPS [options]: runs a recipe as it is for so many steps, and prints
--
--   step = ms   the processor time of a step, median of those after the first three
--   saved = MB  what lies saved for backward at most
--   peak = MB   the most memory that the process had
--
-- or, with --count as the first option,
--
--   operations = 10^9   what the matrix products and convolutions of a step multiply and add, by the audit: two
--                       operations for each pair of numbers, and the median of the same steps
--
-- A step is from the moment that the loader gave a batch until the next one is asked for, so that waiting for data is
-- outside. Processor time counts the threads of the loader too: without augmentation they do next to nothing.

local gb = require "gibbous"
local path, wanted = table.remove(arg, 1), tonumber(table.remove(arg, 1))
if not wanted then error("cost.lua: RECIPE STEPS [options]", 0) end
rawset(arg, 0, path)
local counts = arg[1] == "--count"
if counts then table.remove(arg, 1) end

local UNTIMED = 3 -- steps in which pools grow and kernels are chosen
local seconds, saved, began = {}, 0, nil

-- Of an even count the mean of the middle two, as in clock.py: batches of sentences differ in length.
local function median(all)
  local timed = table.move(all, UNTIMED + 1, #all, 1, {})
  table.sort(timed)
  return (timed[(#timed + 1) // 2] + timed[#timed // 2 + 1]) / 2
end

local function report()
  local status = io.open("/proc/self/status")
  local peak = status and status:read("a"):match "VmHWM:%s*(%d+)" or 0
  print(("step = %.3f"):format(1e3 * median(seconds)))
  print(("saved = %.2f"):format(saved / 1e6))
  print(("peak = %.1f"):format(peak * 1024 / 1e6))
  os.exit(true)
end

local Loader = getmetatable(gb.data.DataLoader(gb.data.TensorDataset(gb.zeros(1))))
local iter = Loader.iter
function Loader:iter(...)
  local next_batch, trains = iter(self, ...), gb.is_grad_enabled()
  if not trains then return next_batch end
  if counts then
    return function()
      coroutine.yield(true)
      return next_batch()
    end
  end
  return function()
    if began then
      seconds[#seconds + 1] = os.clock() - began
      saved = math.max(saved, gb.memory_stats().peak.saved)
      began = nil
      if #seconds == wanted then report() end
    end
    local batch = table.pack(next_batch())
    if batch[1] ~= nil then
      gb.reset_peak_memory_stats()
      began = os.clock()
    end
    return table.unpack(batch, 1, batch.n)
  end
end

function gb.progress() return { update = function() end, close = function() end } end
if not counts then
  dofile(path)
  error(("%s ended after %d steps"):format(path, #seconds), 0)
end

-- The recipe waits before each batch, so that an audit sees one step and nothing else.
local model, to = nil, gb.nn.Module.to
function gb.nn.Module.to(module, ...)
  model = module
  return to(module, ...)
end
local recipe, operations = coroutine.create(dofile), {}
local function step(...)
  local ok, waits = coroutine.resume(recipe, ...)
  if not ok then error(debug.traceback(recipe, tostring(waits)), 0) end
  if not waits then error(("%s ended after %d steps"):format(path, #operations), 0) end
end
step(path)
while #operations < wanted do
  local found = gb.amp.audit(model, step, { print = false }).operations
  if found > 0 then operations[#operations + 1] = found end -- none: the end of an epoch
end
print(("operations = %.4f"):format(median(operations) / 1e9))
os.exit(true)
