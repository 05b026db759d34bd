-- test_recipes.lua - the recipes as users run them, on small data that is written here: each runs two epochs, and one
-- that is stopped after the first and goes on ends with the same weights, bit for bit.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local gibbous = gb.test.program()
local made = dofile "tests/recipe_data.lua"
local folder, housing, put, make_folder = made.folder, made.housing, made.put, made.make_folder

-- {==== runs ====

local function command(recipe, options)
  local pipe = assert(io.popen(("'%s' --threads 1 recipes/%s.lua %s 2>&1"):format(gibbous, recipe, options)))
  local output = pipe:read("a")
  return output, pipe:close() == true
end

-- What a run prints, and the weights that it ends with.
local function run(recipe, options)
  local out = folder .. "/weights.safetensors"
  local output, ok = command(recipe, ("%s --device cpu --out '%s'"):format(options, out))
  if not ok then error(recipe .. ": " .. output) end
  local tensors = gb.load(out)
  os.remove(out)
  return output, tensors
end

-- Two epochs end with the weights of the second one alone, which goes on from the checkpoint of the first. Some
-- recipes write that as a file, others as one of those in a folder. Gives what is printed.
local function expect_resumes(recipe, options)
  local saved = folder .. "/" .. recipe
  local output, whole
  if command(recipe, "--help"):find("folder for a checkpoint", 1, true) then
    output, whole = run(recipe, ("%s --epochs 2 --checkpoint '%s'"):format(options, saved))
    saved = gb.data.files(saved, { ending = ".safetensors" })[1]
    expect(saved:find("/epoch=1%-step=%d+%.safetensors$") ~= nil):to_be(true)
  else
    run(recipe, ("%s --epochs 1 --checkpoint '%s'"):format(options, saved))
    output, whole = run(recipe, options .. " --epochs 2")
  end
  local _, parts = run(recipe, ("%s --epochs 2 --resume '%s'"):format(options, saved))
  local count = 0
  for name, t in pairs(whole) do
    expect(t):to_equal_bits(parts[name])
    count = count + 1
  end
  expect(count > 0):to_be(true)
  return output
end

-- ====}

-- How many parameters there are among weights: all but the statistics of norms.
local function size_of(weights)
  local count = 0
  for name, t in pairs(weights) do
    if not name:find "running_" and not name:find "num_batches_tracked" then count = count + t:numel() end
  end
  return count
end

-- Recipes that read or write pictures need a build that can.
local picture_it = pcall(gb.io.image, "tests/golden/images/rgb.png") and it or function(name)
  print("test_recipes: this build has no libpng; skipped: " .. name)
end

describe("each recipe", function()
  for _, path in ipairs(gb.data.files("recipes", { ending = ".lua" })) do
    local name = path:match "([%w_]+)%.lua$"
    it(name .. " lists its options, and says at once what cannot be", function()
      local help, fine = command(name, "--help")
      expect(fine):to_be(true)
      for _, option in ipairs { "data", "precision", "device", "seed", "resume", "checkpoint", "out" } do
        expect(help:find("  --" .. option .. " ", 1, true) ~= nil):to_be(true)
      end
      local length = help:find("--epochs", 1, true) and "epochs" or "steps"
      local output, ok = command(name, ("--%s 0"):format(length))
      expect(ok):to_be(false)
      expect(output):to_be(("%s: --%s is at least 1, got 0\n"):format(gibbous, length))
      output, ok = command(name, "--out ''" .. (name == "bert" and " --steps 0" or ""))
      expect(ok):to_be(false)
      expect(output:find(gibbous .. ": --data is missing: ", 1, true)):to_be(1)
      output, ok = command(name, ("--out '%s/missing/file'"):format(folder))
      expect(ok):to_be(false)
      expect(output:find("--out: cannot write", 1, true) ~= nil):to_be(true)
    end)
  end
end)

describe("recipes/mnist_cnn.lua", function()
  it("is watched by an event file and a trace, which change nothing", function()
    local options = ("--data '%s/mnist' --batch 16 --epochs 2"):format(folder)
    local runs, path = make_folder "/events", folder .. "/trace.json"
    local _, plain = run("mnist_cnn", options)
    local _, watched = run("mnist_cnn", ("%s --log '%s' --trace '%s'"):format(options, runs, path))
    for name, weight in pairs(plain) do expect(watched[name]):to_equal_bits(weight) end
    local file <close> = assert(io.open(path))
    local kinds = {}
    for _, event in ipairs(gb.io.json_decode(file:read("a")).traceEvents) do
      kinds[event.ph] = (kinds[event.ph] or 0) + 1
    end
    expect(kinds.X > 30 and kinds.s > 0 and kinds.s == kinds.f):to_be(true)
    local python = os.getenv("GIBBOUS_PYTHON")
    if not python then return print("skipped: GIBBOUS_PYTHON names no Python with the package tensorboard") end
    local pipe <close> = assert(io.popen(("%s tests/watch/read_events.py '%s'"):format(python, runs)))
    local told = pipe:read("a")
    if told:find("^skipped") then return print(told) end
    expect(select(2, told:match("scalar loss ([^\n]*)"):gsub("%d+:", ""))):to_be(8)
    for _, part in ipairs { "scalar accuracy 4:", "scalar scale 1:65536", "histogram exponents/conv1.weight.grad 8" } do
      if not told:find(part, 1, true) then error(("'%s' is not in:\n%s"):format(part, told)) end
    end
  end)
end)

describe("recipes/dcgan.lua", function()
  picture_it("goes on bit for bit, scores its digits and writes them as PNG", function()
    local images = make_folder "/grids"
    local output = expect_resumes("dcgan", ("--data '%s/mnist' --batch 16 --width 4 --noise 8 --images '%s' --score")
      :format(folder, images))
    expect(output:find("frechet distance %d+%.%d, classes %d") ~= nil):to_be(true)
    expect(gb.data.images(images, { mode = "gray" }):get(2)):to_have_shape({ 1, 224, 224 })
  end)
end)

describe("recipes/tabular.lua", function()
  it("learns a table with gaps, and goes on bit for bit", function()
    local output = expect_resumes("tabular", ("--data '%s' --batch 16 --width 8"):format(housing))
    expect(output:find("R2 of the logarithm %-?%d+%.%d+") ~= nil):to_be(true)
  end)
end)

describe("recipes/lstm_sentiment.lua", function()
  for _, cell in ipairs { "LSTM", "GRU" } do
    it(("learns sentences with a %s, and goes on bit for bit"):format(cell), function()
      local output = expect_resumes("lstm_sentiment", ("--data '%s/sentences' --cell %s --batch 8 --width 8 --lr 0.05")
        :format(folder, cell))
      expect(output:find("test accuracy %d+%.%d+ %%") ~= nil):to_be(true)
    end)
  end
end)

describe("recipes/mnist_cnn.lua", function()
  it("has a wide form", function()
    local output, fine = command("mnist_cnn", ("--device cpu --out= --data '%s/mnist' --wide --batch 2 --audit")
      :format(folder))
    expect(fine):to_be(true)
    expect(output:find("conv2: Conv2d(420 -> 1000, 3x3, relu)", 1, true) ~= nil):to_be(true)
  end)
end)

describe("recipes/bert.lua", function()
  it("fills gaps, sorts sentences twice, and each of its three runs goes on bit for bit", function()
    local saved, text = folder .. "/bert", put("text.txt", ("the cat sat on the mat. "):rep(40))
    local options = ("--data '%s/sentences' --text '%s' --steps 4 --epochs 2 --batch 8 --width 8 --heads 2 --layers 1 \z
      --block 16 --longest 24"):format(folder, text)
    local output, whole = run("bert", ("%s --checkpoint '%s'"):format(options, saved))
    for _, shown in ipairs { "hidden bytes %d+%.%d+, by frequency alone %d+%.%d+", "from scratch %d+%.%d+ %%",
      "from text %d+%.%d+ %%" } do expect(output:find(shown) ~= nil):to_be(true) end
    local later = ""
    for _, name in ipairs { "text", "scratch", "gaps" } do -- stopped within that run, so the later ones have no files
      local before = gb.data.files(("%s/%s"):format(saved, name), { ending = ".safetensors" })[1]
      assert(os.execute(("cp -r '%s' '%s.cut'"):format(saved, saved)))
      assert(os.execute(("cd '%s.cut' && rm -rf %s && mv '%s' %s/last.safetensors"):format(saved, later, before, name)))
      local _, parts = run("bert", ("%s --resume '%s.cut'"):format(options, saved))
      for key, t in pairs(whole) do expect(t):to_equal_bits(parts[key]) end
      os.execute(("rm -rf '%s.cut'"):format(saved))
      later = later .. " " .. name
    end
    -- one that begins with the text has learned something else than one that does not
    local _, scratch = run("bert", options .. " --steps 0")
    local name = "encoder.bytes.weight"
    expect(scratch[name]:eq(whole[name]):all():item()):to_be(false)
  end)
end)

describe("recipes/cifar_resnet.lua", function()
  picture_it("learns pictures, and goes on bit for bit", function()
    local output = expect_resumes("cifar_resnet", ("--data '%s/pictures' --batch 4"):format(folder))
    expect(output:find("test accuracy %d+%.%d+ %%") ~= nil):to_be(true)
  end)
  picture_it("has ResNet-18 and 50 by name, and gives the same bits where blocks run again in backward", function()
    local options = ("--data '%s/pictures' --batch 8 --epochs 1 --model resnet"):format(folder)
    local _, kept = run("cifar_resnet", options .. "20")
    local _, again = run("cifar_resnet", options .. "20 --recompute")
    for name, t in pairs(kept) do expect(t):to_equal_bits(again[name]) end
    -- as many parameters as published for ten classes, less the rows of eight of them
    expect(size_of(select(2, run("cifar_resnet", options .. "18")))):to_be(11173962 - 8 * 513)
    expect(size_of(select(2, run("cifar_resnet", options .. "50")))):to_be(23520842 - 8 * 2049)
  end)
end)

describe("recipes/unet.lua", function()
  picture_it("learns to draw walls, goes on bit for bit, and draws the test pictures", function()
    local images = make_folder "/walls"
    local output = expect_resumes("unet", ("--data '%s/cells' --images '%s' --crop 32 --width 4 --levels 2 --batch 2 \z
      --checkpoint_every 1")
      :format(folder, images))
    expect(output:find("dice %d%.%d+, IoU %d%.%d+") ~= nil):to_be(true)
    local drawn = gb.data.files(images)
    expect(#drawn):to_be(2)
    expect(drawn[2]):to_be(images .. "/25.png")
    expect(gb.data.images(images, { mode = "gray" }):get(2)):to_have_shape({ 1, 64, 64 })
  end)
end)

describe("recipes/cifar_vit.lua", function()
  picture_it("stops within an epoch, and then tests nothing", function()
    local output, weights = run("cifar_vit", ("--data '%s/pictures' --batch 8 --steps 1 --no-augment"):format(folder))
    expect(output:find("test accuracy", 1, true)):to_be(nil)
    expect(weights["head.weight"]):to_have_shape({ 2, 128 })
  end)
  picture_it("learns mixed pictures with blocks left out, and goes on bit for bit", function()
    local output = expect_resumes("cifar_vit", ("--data '%s/pictures' --batch 8 --drop_path 0.5"):format(folder))
    expect(output:find("test accuracy %d+%.%d+ %%") ~= nil):to_be(true)
  end)
  picture_it("gives the same bits where blocks run again in backward", function()
    local options = ("--data '%s/pictures' --batch 8 --epochs 1 --drop_path 0.5"):format(folder)
    local _, kept = run("cifar_vit", options)
    local _, again = run("cifar_vit", options .. " --recompute")
    for name, t in pairs(kept) do expect(t):to_equal_bits(again[name]) end
  end)
end)

describe("recipes/cifar_efficientnet.lua", function()
  picture_it("learns pictures by an average of weights, and goes on bit for bit", function()
    local output = expect_resumes("cifar_efficientnet", ("--data '%s/pictures' --model tiny --batch 8"):format(folder))
    expect(output:find("test accuracy of the average %d+%.%d+ %%") ~= nil):to_be(true)
  end)
  picture_it("has EfficientNet-B0 by name", function()
    local _, weights = run("cifar_efficientnet", ("--data '%s/pictures' --batch 16 --epochs 1"):format(folder))
    -- as many parameters as published for a thousand classes, with two
    expect(size_of(weights)):to_be(5288548 - 998 * 1281)
  end)
end)

-- Notes that begin in the tracks of a MIDI file, with their times in ticks, and the ticks that all of a track takes.
local function read_midi(text)
  local kind, size, form, count, division, at = string.unpack(">c4I4I2I2I2", text)
  local tracks = { header = ("%s %d %d %d %d"):format(kind, size, form, count, division) }
  for t = 1, count do
    local tag, body
    tag, body, at = string.unpack(">c4s4", text, at)
    local notes, now, i, sounding = {}, 0, 1, nil
    while true do
      local wait = 0
      repeat
        local b = body:byte(i)
        wait, i = wait << 7 | b & 127, i + 1
      until b < 128
      now = now + wait
      if body:byte(i) == 0xff then break end
      local status, note = body:byte(i, i + 1)
      if status >> 4 == 9 then
        assert(not sounding)
        notes[#notes + 1], sounding = { time = now, note = note, channel = status & 15 }, note
      else
        assert(status >> 4 == 8 and note == sounding)
        sounding = nil
      end
      i = i + 3
    end
    assert(tag == "MTrk" and not sounding and i + 2 == #body)
    tracks[t] = { notes = notes, ticks = now }
  end
  assert(at == #text + 1)
  return tracks
end

describe("recipes/chorales.lua", function()
  it("learns two chords, goes on bit for bit, and writes a MIDI file whose notes begin and end", function()
    local path = folder .. "/chorale.mid"
    local output = expect_resumes("chorales", ("--data '%s/chorales' --batch 2 --width 16 --lr 0.02 --rows 40 --midi \z
      '%s'"):format(folder, path))
    expect(output:find("test: %d+%.%d+ nats per note") ~= nil):to_be(true)
    local file <close> = assert(io.open(path, "rb"))
    local tracks = read_midi(file:read("a"))
    expect(tracks.header):to_be("MThd 6 1 4 480")
    for v = 1, 4 do
      expect(tracks[v].ticks <= 40 * 120):to_be(true)
      for _, note in ipairs(tracks[v].notes) do expect(note.time % 120 == 0 and note.channel == v - 1):to_be(true) end
    end
  end)
end)

-- What tests/peers/ measures goes through the recipes as they are.
describe("tests/peers", function()
  it("records the first losses of a recipe, its initial weights and its batches", function()
    local out, data = folder .. "/recording", ("--device cpu --data '%s'"):format(housing)
    local tail = ("--batch 16 --width 8 --epochs 2 --seed 3 %s --out '%s/weights.safetensors'"):format(data, folder)
    local function record(steps)
      local pipe = io.popen(("'%s' --threads 1 tests/peers/record.lua recipes/tabular.lua '%s' %d %s 2>&1"):format(
        gibbous, out, steps, tail))
      local output = pipe:read("a")
      if not pipe:close() then error(output) end
      return gb.load(out)
    end
    local few, all = record(2), record(0)
    expect(few.loss:numel()):to_be(2)
    expect(few.epoch:item()):to_be(3)
    expect(all.loss:numel()):to_be(6)
    expect(all.loss:narrow(1, 1, 2)):to_equal_bits(few.loss)
    expect(few["models.1.layers.0.weight"]):to_equal_bits(all["models.1.layers.0.weight"])
    expect(few["train.1.1"]):to_equal_bits(all["train.1.1"])
    expect(few["train.1.1"]):to_have_shape({ 16, 2 })
    expect(few["test.1.1"] == nil and all["test.1.1"] ~= nil and all["train.6.3"] ~= nil):to_be(true)
    -- what is recorded trains on to the weights that the recipe ends with
    expect(gb.load(folder .. "/weights.safetensors")["layers.0.weight"]):to_equal_bits(
      select(2, run("tabular", ("--batch 16 --width 8 --epochs 2 --seed 3 --data '%s'"):format(housing)))
      ["layers.0.weight"])
  end)
  it("asks the audit about one step of a recipe", function()
    for _, case in ipairs { { "tabular", housing }, { "lstm_sentiment", folder .. "/sentences" } } do
      local pipe = io.popen(("'%s' --threads 1 tests/peers/precision.lua --one recipes/%s.lua 16-mixed \z
        --precision 16-mixed --device cpu --data '%s' --batch 16 --width 8 --out '%s/weights.safetensors' 2>&1"):format(
        gibbous, case[1], case[2], folder))
      local output = pipe:read("a")
      if not pipe:close() then error(output) end
      expect(tonumber(output:match("share = ([%d.]+)")) == 100.0):to_be(true)
      expect(tonumber(output:match("casts = (%d+)")) > 0):to_be(true)
      expect(output:find("settled = 65536.0", 1, true) ~= nil):to_be(true)
    end
  end)
end)

made.remove()
gb.test.finish()
