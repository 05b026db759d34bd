-- test_recipes_on_device.lua - the recipes as users run them, a few small steps on the emulated device: the losses of
-- 32-true are those of the CPU but for rounding, and in 16-mixed they are finite.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local gibbous = gb.test.program()
local made = dofile "tests/recipe_data.lua"
local folder = made.folder
local text = made.put("text.txt", ("the cat sat on the mat. "):rep(100))

-- What each is run with. Sums of another order differ in the last bits of float32, which a few steps at a small
-- learning rate keep below 1e-4 of the loss.
local CASES = {
  bert = { "sentences", ("--text '%s' --steps 10 --epochs 1 --batch 8 --width 8 --heads 2 --layers 1 --block 16 \z
    --longest 24"):format(text) },
  char_gpt = { text, "--steps 20 --batch 2 --block 16 --layers 1 --heads 2 --width 16 --eval_batches 1 --sample 0" },
  chorales = { "chorales", "--epochs 3 --batch 2 --width 8 --rows 4 --dropout 0" },
  cifar_efficientnet = { "pictures", "--model tiny --batch 2 --epochs 1", steps = 4 },
  cifar_resnet = { "pictures", "--batch 2 --epochs 1 --lr 0.001", steps = 2 },
  cifar_vit = { "pictures", "--batch 2 --epochs 1", steps = 4 },
  dcgan = { "mnist", "--batch 16 --width 4 --noise 8 --epochs 1" },
  gpt2 = { text, "--dtype uint8 --vocabulary 256 --model tiny --block 16 --steps 10 --batch 2 --valid_batches 1" },
  lstm_sentiment = { "sentences", "--batch 8 --width 8 --epochs 1" },
  mnist_cnn = { "mnist", "--batch 8 --epochs 1", steps = 4 },
  tabular = { made.housing, "--batch 16 --width 8 --epochs 4" },
  unet = { "cells", "--crop 32 --width 4 --levels 2 --batch 2 --epochs 2" },
}
local NEEDS_PNG = { pictures = true, cells = true }
local has_png = pcall(gb.io.image, "tests/golden/images/rgb.png")

-- The first losses of a recipe.
local function losses(name, case, device, precision, count)
  local out = folder .. "/losses.safetensors"
  local data = case[1]:find("^/") and case[1] or folder .. "/" .. case[1]
  local pipe = io.popen(("'%s' --threads 1 tests/peers/record.lua recipes/%s.lua '%s' %d --data '%s' --out= \z
    --device %s --precision %s %s 2>&1"):format(gibbous, name, out, count, data, device, precision, case[2]))
  local output = pipe:read("a")
  if not pipe:close() then error(("%s on %s: %s"):format(name, device, output)) end
  local made_losses = gb.load(out).loss
  os.remove(out)
  return made_losses
end

describe("on the emulated device", function()
  for _, path in ipairs(gb.data.files("recipes", { ending = ".lua" })) do
    local name = path:match "([%w_]+)%.lua$"
    it(name .. " has the losses of the CPU", function()
      local case = CASES[name] or error("test_recipes_on_device: recipes/" .. name .. ".lua is not among its cases")
      if NEEDS_PNG[case[1]] and not has_png then return print("this build has no libpng; skipped: " .. name) end
      local steps = case.steps or 20
      local here, there = losses(name, case, "cpu", "32-true", steps), losses(name, case, "cuda", "32-true", steps)
      expect(there):to_have_shape(here.shape)
      expect(here:numel() >= math.min(steps, 4)):to_be(true)
      local far = ((there - here):abs() / here:abs():maximum(there:abs()):clamp(1e-3)):max():item()
      expect(far <= 1e-4):to_be(true)
      expect(losses(name, case, "cuda", "16-mixed", 2):isfinite():all():item()):to_be(true)
    end)
  end
end)

made.remove()
gb.test.finish()
