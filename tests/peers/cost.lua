-- cost.lua - gibbous tests/peers/cost.lua RECIPE STEPS [options]: runs a recipe as it is for so many steps, and prints
--
--   step = ms   the processor time of a step, median of those after the first three
--   saved = MB  what lies saved for backward at most
--   peak = MB   the most memory that the process had
--
-- A step is from the moment that the loader gave a batch until the next one is asked for, so that waiting for data is
-- outside. Processor time counts the threads of the loader too: without augmentation they do next to nothing.

local gb = require "gibbous"
local path, wanted = table.remove(arg, 1), tonumber(table.remove(arg, 1))
if not wanted then error("cost.lua: RECIPE STEPS [options]", 0) end
rawset(arg, 0, path)

local UNTIMED = 3 -- steps in which pools grow and kernels are chosen
local seconds, saved, began = {}, 0, nil

local function report()
  local timed = table.move(seconds, UNTIMED + 1, #seconds, 1, {})
  table.sort(timed)
  local status = io.open("/proc/self/status")
  local peak = status and status:read("a"):match "VmHWM:%s*(%d+)" or 0
  -- of an even count the mean of the middle two, as in clock.py: batches of sentences differ in length
  print(("step = %.3f"):format(1e3 * (timed[(#timed + 1) // 2] + timed[#timed // 2 + 1]) / 2))
  print(("saved = %.2f"):format(saved / 1e6))
  print(("peak = %.1f"):format(peak * 1024 / 1e6))
  os.exit(true)
end

local Loader = getmetatable(gb.data.DataLoader(gb.data.TensorDataset(gb.zeros(1))))
local iter = Loader.iter
function Loader:iter(...)
  local next_batch, trains = iter(self, ...), gb.is_grad_enabled()
  if not trains then return next_batch end
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
dofile(path)
error(("%s ended after %d steps"):format(path, #seconds), 0)
