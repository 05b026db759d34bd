-- recipe_data.lua - small data for the recipes, written into a folder of its own: returns { folder =, housing =, put =,
-- make_folder =, remove = }. In the folder lie mnist, pictures (where this build writes PNG), cells, chorales and
-- sentences, as the recipes' --data wants them.

local gb = require "gibbous"

local folder = os.tmpname()
os.remove(folder)

local function make_folder(name)
  local path = folder .. name
  assert(os.execute(("mkdir -p '%s'"):format(path)))
  return path
end
make_folder ""

local function put(name, text)
  local path = folder .. "/" .. name
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end

-- {==== data ====

gb.manual_seed(5)

-- Digits in MNIST's format: count images of 28 x 28 bytes, and labels that say which third is bright.
local function write_digits(name, count)
  local images, labels = {}, {}
  for i = 1, count do
    local label, rows = i % 3, {}
    for y = 1, 28 do
      local bright = (y - 1) // 10 == label
      for x = 1, 28 do rows[#rows + 1] = string.char(bright and 200 + (x * i) % 50 or (x * y * i) % 40) end
    end
    images[i], labels[i] = table.concat(rows), string.char(label)
  end
  put("mnist/" .. name .. "-images-idx3-ubyte", string.pack(">I4I4I4I4", 2051, count, 28, 28) .. table.concat(images))
  put("mnist/" .. name .. "-labels-idx1-ubyte", string.pack(">I4I4", 2049, count) .. table.concat(labels))
end
make_folder "/mnist"
write_digits("train", 64)
write_digits("t10k", 16)

-- Houses with a gap here and there.
local houses = { "rooms,age,shore,median_house_value" }
for i = 1, 60 do
  houses[i + 1] = ("%s,%d,%s,%d"):format(i % 7 == 0 and "" or i % 5, i * 13 % 40, ({ "near", "far", "" })[i % 3 + 1],
    1000 + i % 5 * 500 + i % 3 * 100)
end
local housing = put("housing.csv", table.concat(houses, "\n") .. "\n")

-- Pictures in folders of classes, one brighter than the other; eight of each train.
for part, count in pairs { train = 8, test = 2 } do
  for class, light in pairs { bright = 0.6, dark = 0.0 } do
    local path = make_folder(("/pictures/%s/%s"):format(part, class))
    for i = 1, count do pcall(gb.io.save_image, ("%s/%d.png"):format(path, i), gb.rand(3, 32, 32) * 0.4 + light) end
  end
end

-- Cells of 64 x 64 with black walls, and the walls alone.
make_folder "/cells/image"
make_folder "/cells/label"
for _, number in ipairs { 0, 1, 2, 3, 10, 24, 25 } do
  local walls = gb.arange(64):remainder(16):lt(3):float():expand(64, 64)
  local label = (1 - walls * (1 - walls:t())):unsqueeze(1)
  pcall(gb.io.save_image, ("%s/cells/label/%d.png"):format(folder, number), label)
  pcall(gb.io.save_image, ("%s/cells/image/%d.png"):format(folder, number), label * 0.7 + gb.rand(1, 64, 64) * 0.3)
end

-- Chorales of two chords that change places.
for part, count in pairs { train = 6, valid = 2, test = 2 } do
  make_folder("/chorales/" .. part)
  for i = 1, count do
    local rows = { "note0,note1,note2,note3" }
    for row = 1, 8 + 4 * i do rows[row + 1] = row // 4 % 2 == 0 and "72,67,64,48" or "71,67,62,0" end
    put(("chorales/%s/chorale_%03d.csv"):format(part, i), table.concat(rows, "\n") .. "\n")
  end
end

-- Sentences of which one word tells the label.
make_folder "/sentences"
for name, word in pairs { neg = "dull", pos = "fine" } do
  local lines = {}
  for i = 1, 40 do lines[i] = ("film "):rep(i % 4) .. ("a %s %s"):format(word, ("day "):rep(i % 5)) end
  put("sentences/rt-polarity." .. name, table.concat(lines, "\n") .. "\n")
end

-- ====}

local function remove() os.execute(("rm -rf '%s'"):format(folder)) end

return { folder = folder, housing = housing, put = put, make_folder = make_folder, remove = remove }
