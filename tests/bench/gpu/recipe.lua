-- recipe.lua - recipe.lua SKIP OPTIONS: runs recipes/gpt2.lua as it is and prints its speed after the first SKIP steps,
-- and the peak of its memory. The device is waited for twice only: after the skipped steps and at the end.

local gb = require "gibbous"

local skip, device, batch = tonumber(table.remove(arg, 1)), "cuda", 16
for i, word in ipairs(arg) do
  if word == "--device" then device = arg[i + 1] end
  if word == "--batch" then batch = tonumber(arg[i + 1]) end
end
local function wait()
  if device ~= "cpu" then gb.cuda.synchronize() end
end

local start, step, tokens
function gb.progress(_, _, options)
  tokens = options.unit_size
  return {
    update = function()
      step = (step or 0) + 1
      if step ~= skip then return end
      wait()
      start = gb.clock()
    end,
    close = function()
      wait()
      print(("gpt2 batch %d tokens per second\t%.9g"):format(batch, (step - skip) * tokens / (gb.clock() - start)))
      if device ~= "cpu" then print(("gpt2 batch %d peak bytes\t%d"):format(batch, gb.cuda.max_memory_allocated())) end
    end,
  }
end

local out = os.tmpname()
for _, word in ipairs { "--valid_batches", "1", "--valid_every", "1000000", "--out", out } do arg[#arg + 1] = word end
dofile("recipes/gpt2.lua")
os.remove(out)
