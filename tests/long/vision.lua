-- vision.lua - the recipes over pictures in two minutes each, on real data: that each learns, in float32 and in 16
-- bits, and that one which goes on from a checkpoint ends with the same bits. Run by `./dev test --long`.
--
--   GIBBOUS_DATA=FOLDER build/gibbous tests/long/vision.lua NAME       (a recipe of the table below, or l16)
--
-- FOLDER holds mnist/, cifar10/ and membrane/. Without it nothing runs (exit status 77). What must be reached lies well
-- below what the runs reach, and far above what guessing does.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local gibbous, folder, name = gb.test.program(), os.getenv "GIBBOUS_DATA", arg[1]
if not folder then
  print("skipped: GIBBOUS_DATA names no folder with mnist/, cifar10/ and membrane/")
  os.exit(77)
end
local work = os.tmpname()
os.remove(work)
assert(os.execute(("mkdir -p '%s'"):format(work)))

-- Run a recipe; what it prints, and the weights that it ends with.
local function run(recipe, options)
  local out = work .. "/weights.safetensors"
  local command = ("'%s' recipes/%s.lua --device cpu --out '%s' %s"):format(gibbous, recipe, out, options)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local output = pipe:read "a"
  if not pipe:close() then error(command .. " failed:\n" .. output) end
  local weights = gb.load(out)
  os.remove(out)
  return output, weights
end

-- By recipe: its data, options that make it short, what is read of its output, the least or most of that, and whether a
-- checkpoint is a file.
local short = {
  mnist_cnn = { "mnist", "--epochs 2", "accuracy ([%d.]+)", least = 95, file = true },
  cifar_resnet = { "cifar10", "--epochs 2", "accuracy ([%d.]+)", least = 35 },
  cifar_efficientnet = { "cifar10", "--epochs 2 --model tiny --drop_path 0", "accuracy of the average ([%d.]+)",
    least = 20 },
  cifar_vit = { "cifar10", "--epochs 2", "accuracy ([%d.]+)", least = 25 },
  unet = { "membrane", "--epochs 40 --checkpoint_every 20", "dice ([%d.]+)", least = 0.7 },
  dcgan = { "mnist", "--epochs 2 --score", "distance ([%d.]+)", most = 700, file = true },
}

-- The last number that a pattern finds.
local function last(text, pattern)
  local found
  for number in text:gmatch(pattern) do found = tonumber(number) end
  return found
end

-- A run that goes on from its first checkpoint ends with these weights. Some recipes write it as a file, others as one
-- of those in a folder.
local function expect_resumed(options, whole, saved, is_file)
  if is_file then run(name, ("%s --epochs 1 --checkpoint '%s'"):format(options, saved))
  else saved = gb.data.files(saved, { ending = ".safetensors" })[1] end
  local _, weights = run(name, ("%s --resume '%s'"):format(options, saved))
  for key, t in pairs(whole) do expect(t):to_equal_bits(weights[key]) end
end

local function learns(row)
  local saved = work .. "/saved"
  for _, precision in ipairs { "32-true", "bf16-mixed", "16-mixed" } do
    local options = ("--data '%s/%s' --precision %s %s"):format(folder, row[1], precision, row[2])
    local whole
    it("learns in " .. precision, function()
      local output
      local checkpoint = precision == "16-mixed" and not row.file and ("--checkpoint '%s'"):format(saved) or ""
      output, whole = run(name, options .. " " .. checkpoint)
      local value = last(output, row[3])
      print(("%s %-10s %g"):format(name, precision, value))
      expect(value >= (row.least or value) and value <= (row.most or value)):to_be(true)
    end)
    if precision == "16-mixed" then
      it("goes on bit for bit", function() expect_resumed(options, whole, saved, row.file) end)
    end
  end
end

local goals = { l16 = function()
  it("ViT L/16 makes a step at 224 x 224 with recompute, and the same one without", function()
    for _, part in ipairs { "train", "test" } do
      for _, class in ipairs { "a", "b" } do
        local path = ("%s/pictures/%s/%s"):format(work, part, class)
        assert(os.execute(("mkdir -p '%s'"):format(path)))
        for i = 1, 2 do gb.io.save_image(("%s/%d.png"):format(path, i), gb.rand(3, 32, 32)) end
      end
    end
    local options = ("--data '%s/pictures' --model l16 --batch 2 --steps 1 --drop_path 0.2"):format(work)
    local _, kept = run("cifar_vit", options .. " --recompute")
    local _, again = run("cifar_vit", options)
    local count = 0
    for key, t in pairs(kept) do
      count = count + t:numel()
      expect(t):to_equal_bits(again[key])
      expect(t:isfinite():all():item()):to_be(true)
    end
    expect(count):to_be(304326632 - 998 * 1025) -- as published for a thousand classes, with two
  end)
end }
for recipe, row in pairs(short) do goals[recipe] = function() learns(row) end end

describe(name or "", goals[name] or error("vision.lua: name a recipe over pictures, or l16", 0))
os.execute(("rm -rf '%s'"):format(work))
gb.test.finish()
