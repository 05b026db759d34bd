-- test_images.lua - images in files against Pillow, transforms against torchvision, and gb.data.images: order, workers,
-- masks, what is damaged.

local gb = require "gibbous"
gb.set_default_device("cpu") -- datasets lie in host memory
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local transforms, folder = gb.data.transforms, "tests/golden/images/"

local function read_file(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read("a")
end

-- Is this build able to read both formats?
local able = pcall(gb.io.image, folder .. "rgb.png") and pcall(gb.io.image, folder .. "gray.jpg")
if not able then print("test_images: this build has no libjpeg-turbo or no libpng; nothing is tested") return end

local function bytes_of(hex) return (hex:gsub("..", function(two) return string.char(tonumber(two, 16)) end)) end

local rows = {}
for line in io.lines(folder .. "pixels.jsonl") do rows[#rows + 1] = gb.io.json_decode(line) end

describe("an image in a file, byte for byte as Pillow has it", function()
  for _, row in ipairs(rows) do
    it(row.name, function()
      for mode, channels in pairs { rgb = 3, gray = 1 } do
        local image = gb.io.image(folder .. row.name, { mode = mode })
        expect(table.concat(image.shape, " ")):to_be(("%d %d %d"):format(row.height, row.width, channels))
        expect(image.dtype):to_be("uint8")
        local want = bytes_of(row[mode])
        expect(gb.to_bytes(image) == want):to_be(true)
        expect(gb.to_bytes(gb.io.decode_image(read_file(folder .. row.name), { mode = mode })) == want):to_be(true)
      end
    end)
  end
end)

-- {==== Transforms ====

local golden = {}
for line in io.lines("tests/golden/data/transforms.jsonl") do golden[#golden + 1] = gb.io.json_decode(line) end
local images = {}
for name, image in pairs(table.remove(golden, 1).images) do
  images[name] = gb.from_bytes(bytes_of(image.bytes), "uint8", image.shape)
end

-- Where levels is 1: results of float32 arithmetic lie at a border of rounding now and then; and a pixel that lies on
-- the line between two may be taken from either, since sines and cosines differ in their last bit, so a few may be
-- anything. Resizing is off by a level at most: Pillow 13 resizes columns first where that is cheaper, which rounds
-- elsewhere; in the order of those before it, bytes are the same.
describe("a transform, as torchvision and Pillow do it", function()
  for i, row in ipairs(golden) do
    it(("%d %s of %s %s"):format(i, row.name, row.image, gb.io.json_encode(row.options)), function()
      local arguments, resized = row.arguments, row.name:find("resize") ~= nil
      arguments[#arguments + 1] = next(row.options) and row.options
      local got = transforms[row.name](table.unpack(arguments)):apply(images[row.image], { seed = row.seed })
      expect(table.concat(got.shape, " ")):to_be(table.concat(row.shape, " "))
      local want = gb.from_bytes(bytes_of(row.bytes), "uint8", row.shape)
      local off = (got:to("int32") - want:to("int32")):abs()
      local some_off, far_off = off:gt(0):float():mean():item(), off:gt(row.levels):float():mean():item()
      expect(far_off):to_be_near(0, (row.levels == 0 or resized) and 0 or 0.02)
      if not resized then expect(some_off):to_be_near(0, row.levels == 0 and 0 or 0.05) end
    end)
  end
end)

-- ====}

-- {==== The same transform alone ====

describe("a transform alone", function()
  local image = images.colours

  it("is a function of the seed", function()
    local t = transforms.compose {
      transforms.random_crop(8, { padding = 2 }), transforms.flip(), transforms.color_jitter { brightness = 0.5 },
      transforms.rand_augment(), transforms.to_float(), transforms.normalize(0.5, 0.2), transforms.cutout(3),
    }
    expect(t(image, { seed = 3 })):to_equal_bits(t:apply(image, { seed = 3 }))
    local different = 0
    for seed = 1, 20 do
      local same = t(image, { seed = seed }):eq(t(image, { seed = seed + 100 })):all():item()
      different = different + (same and 0 or 1)
    end
    expect(different):to_be(20)
    gb.manual_seed(7)
    local first, second = t(image), t(image)
    gb.manual_seed(7)
    expect(t(image)):to_equal_bits(first)
    expect(first:eq(second):all():item()):to_be(false)
    expect(tostring(t)):to_be("transform (random_crop, flip, color_jitter, rand_augment, to_float, normalize, cutout)")
  end)

  it("leaves what it was given as it is", function()
    local before = image:clone()
    for _, name in ipairs { "autocontrast", "equalize", "grayscale" } do transforms[name] { p = 1 }(image) end
    transforms.cutout(4)(image)
    transforms.color_jitter { brightness = { 2, 2 }, hue = { 0.2, 0.2 } }(image)
    local floats = transforms.to_float()(image)
    local kept = floats:clone()
    transforms.normalize(0.5, 0.5)(floats)
    transforms.random_erasing { p = 1 }(floats)
    expect(image):to_equal_bits(before)
    expect(floats):to_equal_bits(kept)
  end)

  it("makes floats of bytes, and normalises them", function()
    local floats = transforms.to_float()(image)
    expect(floats):to_have_shape(3, image.shape[1], image.shape[2])
    expect(floats):to_be_close(image:permute(3, 1, 2):float() / 255, 1e-7)
    local mean, std = gb.tensor { 0.1, 0.2, 0.3 }, gb.tensor { 0.5, 0.6, 0.7 }
    expect(transforms.normalize(mean:tolist(), std:tolist())(floats)):to_be_close(
      (floats - mean:reshape(3, 1, 1)) / std:reshape(3, 1, 1), 1e-6)
  end)

  -- composed, the two are one table of 256 floats for each channel
  it("gives the same bits where to_float and normalize are steps of one transform", function()
    for _, of in ipairs { 1, 3 } do
      for _, channels in ipairs { 1, 3 } do
        local bytes = gb.arange(256 * channels):reshape(16, 16, channels):to("uint8")
        local mean, std = { 0.4914, 0.4822, 0.4465 }, { 0.247, 0.2435, 0.2616 }
        if of == 1 then mean, std = 0.1307, 0.3081 end
        local to_float, normalize = transforms.to_float(), transforms.normalize(mean, std)
        local both = transforms.compose { to_float, normalize, transforms.cutout(3) }
        if of <= channels then
          local alone = transforms.compose { to_float, transforms.normalize(0, 1), transforms.cutout(3) }(bytes,
            { seed = 3 })
          local want = normalize(to_float(bytes))
          local filled = transforms.compose { to_float, normalize, transforms.cutout(3) }(bytes, { seed = 3 })
          expect(filled):to_equal_bits(gb.where(filled:eq(0):logical_and(alone:eq(0)), filled, want))
          expect(transforms.compose { to_float, normalize }(bytes)):to_equal_bits(want)
        else
          expect(function() both(bytes) end):to_fail("mean and std are of 3 channels, the image has 1")
        end
      end
    end
  end)

  it("turns pixels of every width", function()
    for _, channels in ipairs { 1, 3 } do
      for width = 1, 9 do
        local bytes = gb.arange(5 * width * channels):reshape(5, width, channels):to("uint8")
        expect(transforms.flip({ p = 1 })(bytes)):to_equal_bits(bytes:flip(2))
        expect(transforms.flip({ p = 1, direction = "vertical" })(bytes)):to_equal_bits(bytes:flip(1))
      end
    end
  end)

  it("takes a mask through the same geometry", function()
    local t = transforms.compose {
      transforms.random_crop(9, { padding = 3 }), transforms.flip(), transforms.rotate(40),
      transforms.affine(20, { translate = { 0.2, 0.2 }, shear = 10 }), transforms.elastic { alpha = 9, sigma = 1,
        mode = "nearest" }, transforms.rand_augment { n = 1 },
    }
    -- which of its pixels were made brighter, darker, ... is not asked: the steps of colour never make 0 of 200
    local gray = gb.full({ 12, 9, 1 }, 200):to("uint8")
    for y = 1, 12, 3 do gray[{ y, { 1, 9 }, 1 }] = 0 end
    local plain = transforms.compose { transforms.random_crop(9, { padding = 3 }), transforms.flip(),
      transforms.rotate(40), transforms.elastic { alpha = 9, sigma = 1, mode = "nearest" } }
    for seed = 1, 20 do
      local moved, mask = plain(gray, { seed = seed, mask = gray:squeeze(3) })
      expect(mask):to_equal_bits(moved:squeeze(3))
      local _, other = t(gray, { seed = seed, mask = gray:squeeze(3) })
      expect(other):to_have_shape(9, 9)
    end
  end)

  it("fills squares and random parts", function()
    local ones = gb.ones(3, 20, 30)
    for seed = 1, 10 do
      local cut = transforms.cutout(6, { fill = 5 })(ones, { seed = seed })
      local filled = cut:eq(5):sum():item()
      expect(filled >= 3 * 9 and filled <= 3 * 36 and filled + cut:eq(1):sum():item() == 1800):to_be(true)
      local erased = transforms.random_erasing { p = 1, scale = { 0.1, 0.2 } }(ones, { seed = seed })
      local share = erased:eq(0):float():mean():item()
      expect(share > 0.07 and share < 0.24):to_be(true)
    end
  end)

  it("says what does not fit", function()
    local steps = { transforms.to_float(), transforms.flip() }
    expect(function() transforms.compose(steps) end):to_fail("flip works on bytes")
    expect(function() transforms.compose { transforms.flip(), transforms.normalize(0, 1) } end):to_fail("to_float()")
    expect(function() transforms.compose {} end):to_fail("1 to 64 steps, not none")
    expect(function() transforms.compose { 3 } end):to_fail("[1] of the list is number")
    expect(function() transforms.flip()(transforms.to_float()(image)) end):to_fail("put it before to_float()")
    expect(function() transforms.normalize(0, 1)(image) end):to_fail("put to_float() before it")
    expect(function() transforms.random_crop(100)(image) end):to_fail("100 x 100 pixels (height x width) cannot be cut")
    expect(function() transforms.flip { p = 2 } end):to_fail("'p' is a probability from 0 to 1, got 2")
    expect(function() transforms.rotate(0 / 0) end):to_fail("finite")
    expect(function() transforms.resize { 3, 4, 5 } end):to_fail("'size' is a number or { height, width }")
    expect(function() transforms.resize(0) end):to_fail("from 1 to 65536, got 0")
    expect(function() transforms.cutout(1 << 40) end):to_fail("from 1 to 65536, got 1099511627776")
    expect(function() transforms.posterize((1 << 32) + 1) end):to_fail("lies between 1 and 8, got 4294967297")
    expect(function() transforms.solarize(0 / 0) end):to_fail("'threshold' must be finite")
    expect(function() transforms.color_jitter { hue = 0.7 } end):to_fail("'hue' is a range { low, high } from -0.5")
    expect(function() transforms.normalize({ 1, 2 }, { 1, 2 }) end):to_fail("1 or 3")
    expect(function() transforms.normalize(0, 0) end):to_fail("'std' must be above 0")
    expect(function() transforms.flip()(gb.zeros(3, 3)) end):to_fail("uint8 [height, width, 1 or 3]")
    expect(function() transforms.flip()(gb.zeros(0, 3, 3):to("uint8")) end):to_fail("uint8 [height, width, 1 or 3]")
    expect(function() transforms.flip()(image, { mask = gb.zeros(3, 3):to("uint8") }) end):to_fail("as large")
    expect(function() transforms.resize { 65536, 65536 }(image) end):to_fail("are too many")
  end)
end)

-- ====}

-- {==== Batches ====

describe("mixup and cutmix", function()
  local x, y = gb.arange(4 * 3 * 6 * 8):reshape(4, 3, 6, 8):float(), gb.tensor { 2, 0, 1, 2 }

  it("mixes each sample with the one before it", function()
    local mixed, labels = transforms.mixup(x, y, { classes = 3, share = 0.75 })
    expect(mixed):to_be_close(x * 0.75 + gb.roll(x, 1, 1) * 0.25, 1e-6)
    expect(labels):to_be_close({ 0, 0, 1, 0.75, 0, 0.25, 0.25, 0.75, 0, 0, 0.25, 0.75 }, 1e-6)
    expect(select(2, transforms.mixup(x, labels, { share = 1 }))):to_be_close(labels, 1e-7)
  end)

  it("puts a box of the one before it into each sample, and labels say how large", function()
    gb.manual_seed(2)
    local seen = {}
    for _ = 1, 30 do
      local mixed, labels = transforms.cutmix(x, y, { classes = 3 })
      local other = mixed:ne(x):float():mean():item()
      seen[#seen + 1] = other
      expect(labels[{ 2, 1 }]:item()):to_be_near(1 - other, 1e-5)
      local from_neighbour = mixed:eq(gb.roll(x, 1, 1)):logical_or(mixed:eq(x)):all():item()
      expect(from_neighbour):to_be(true)
    end
    table.sort(seen)
    expect(seen[1] < 0.1 and seen[30] > 0.4):to_be(true)
  end)

  it("draws shares from a beta distribution", function()
    gb.manual_seed(5)
    for alpha, variance in pairs { [0.2] = 0.25 / 1.4, [1] = 1 / 12, [4] = 0.25 / 9 } do
      local sum, squares, n = 0, 0, 2000
      for _ = 1, n do
        local mixed = transforms.mixup(gb.tensor { 0.0, 1.0 }, gb.tensor { { 1.0 }, { 1.0 } }, { alpha = alpha })
        local share = mixed[2]:item()
        sum, squares = sum + share, squares + (share - 0.5) ^ 2
      end
      expect(sum / n):to_be_near(0.5, 0.03)
      expect(squares / n):to_be_near(variance, 0.012)
    end
  end)

  it("say what does not fit", function()
    expect(function() transforms.mixup(x, y) end):to_fail("classes = how many")
    expect(function() transforms.mixup(x, y[{ { 1, 3 } }], { classes = 3 }) end):to_fail("as many samples")
    expect(function() transforms.cutmix(x:long(), y, { classes = 3 }) end):to_fail("x holds floats")
    expect(function() transforms.mixup(x, y, { classes = 3, share = 2 }) end):to_fail("'share' lies between")
    expect(function() transforms.mixup(x, y, { classes = 3, alpha = 0 }) end):to_fail("'alpha' lies between 0.001")
    expect(function() transforms.cutmix(gb.rand(4, 3), y, { classes = 3 }) end):to_fail("height, width")
  end)
end)

-- ====}

-- {==== Folders ====

local root = os.tmpname()
os.remove(root)

local function write(path, bytes)
  os.execute(("mkdir -p '%s/%s'"):format(root, path:match("^(.*)/") or ""))
  local file <close> = assert(io.open(root .. "/" .. path, "wb"))
  assert(file:write(bytes))
end

local function golden_file(name) return read_file(folder .. name) end

local jpegs = { "baseline_0.jpg", "baseline_1.jpg", "baseline_2.jpg", "progressive.jpg", "optimised.jpg" }
for k, class in ipairs { "zebra", "ant", "bee" } do
  for i = 1, 4 + k do write(("classes/%s/%02d.%s"):format(class, i, i % 2 == 0 and "jpg" or "JPEG"),
    golden_file(jpegs[(i + k) % #jpegs + 1])) end
  write(("classes/%s/notes.txt"):format(class), "not an image")
end

-- All batches of an epoch, as one tensor for each column.
local function epoch_of(dataset, options)
  local columns = { {}, {} }
  for x, y in gb.data.DataLoader(dataset, options):iter() do
    columns[1][#columns[1] + 1] = x
    columns[2][#columns[2] + 1] = y
  end
  return gb.cat(columns[1], 1), columns[2][1] and gb.cat(columns[2], 1)
end

describe("a folder of class folders", function()
  it("has classes sorted by name, and files in that order", function()
    local dataset = gb.data.images(root .. "/classes")
    expect(table.concat(dataset:classes(), " ")):to_be("ant bee zebra")
    expect(#dataset):to_be(6 + 7 + 5)
    local x, y = dataset:get(1)
    expect(x):to_have_shape(3, 13, 19)
    expect(x):to_be_close(gb.io.image(root .. "/classes/ant/01.JPEG"):permute(3, 1, 2):float() / 255, 1e-7)
    expect(y.dtype):to_be("int64")
    expect(y:item()):to_be(0)
    local _, labels = epoch_of(dataset, { batch_size = 4 })
    expect(table.concat(labels:tolist(), "")):to_be("000000" .. "1111111" .. "22222")
    expect(table.concat(dataset:subset(7, 13):classes(), " ")):to_be("ant bee zebra")
  end)

  it("gives the same batches for any number of workers, and others in the next epoch", function()
    local transform = transforms.compose {
      transforms.random_crop(12, { padding = 2 }), transforms.flip(), transforms.color_jitter { brightness = 0.3 },
      transforms.elastic { alpha = 5, sigma = 1 }, transforms.to_float(),
    }
    local dataset = gb.data.images(root .. "/classes", { transform = transform }):subset(2, 18)
    local want
    for _, workers in ipairs { 0, 1, 2, 3, 8 } do
      for _, prefetch in ipairs { 0, 2 } do
        local loader = gb.data.DataLoader(dataset, { batch_size = 5, shuffle = true, seed = 9, workers = workers,
          prefetch = prefetch })
        local batches = {}
        for _ = 1, 2 do
          for x, y in loader:iter() do batches[#batches + 1] = { x, y } end
        end
        expect(#batches):to_be(8)
        want = want or batches
        for i, batch in ipairs(batches) do
          expect(batch[1]):to_equal_bits(want[i][1])
          expect(batch[2]):to_equal_bits(want[i][2])
        end
      end
    end
    local ordered = { batch_size = 17, workers = 2, seed = 5 }
    local first = gb.data.DataLoader(dataset, ordered):iter()()
    local second = gb.data.DataLoader(dataset, { batch_size = 17, seed = 6 }):iter()()
    expect(first:eq(second):all():item()):to_be(false)
  end)

  it("reads on from the middle of an epoch", function()
    local dataset = gb.data.images(root .. "/classes", { transform = transforms.random_crop(9) })
    local options = { batch_size = 4, shuffle = true, seed = 2, workers = 2 }
    local loader = gb.data.DataLoader(dataset, options)
    local iter = loader:iter()
    iter() iter()
    local state = loader:state_dict()
    local want = iter()
    local other = gb.data.DataLoader(dataset, options)
    other:load_state_dict(state)
    expect((other:iter()())):to_equal_bits(want)
  end)

  it("is not opened again for files that it keeps", function()
    local want = epoch_of(gb.data.images(root .. "/classes"), { batch_size = 4 })
    for _, workers in ipairs { 0, 3 } do
      os.execute(("rm -rf '%s/gone'; cp -r '%s/classes' '%s/gone'"):format(root, root, root))
      local all = gb.data.images(root .. "/gone", { keep = 1 << 20 })
      local some = gb.data.images(root .. "/gone", { keep = 3000 })
      for _, dataset in ipairs { all, some } do
        expect((epoch_of(dataset, { batch_size = 4, workers = workers }))):to_equal_bits(want)
      end
      os.execute(("rm -rf '%s/gone'"):format(root))
      expect((epoch_of(all, { batch_size = 4, workers = workers }))):to_equal_bits(want)
      expect(function() epoch_of(some, { batch_size = 4, workers = workers }) end):to_fail("cannot open it")
    end
    expect(function() gb.data.images(root .. "/classes", { keep = -1 }) end):to_fail("keep")
    expect(#gb.data.images(root .. "/classes", { keep = math.maxinteger })):to_be(18)
  end)

  it("reads files of every size about that which is read at once", function()
    local png = golden_file("rgb.png")
    for _, size in ipairs { #png, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 100000 } do
      write("sizes/image.png", png .. ("x"):rep(size - #png)) -- what follows the image is not looked at
      expect(gb.data.images(root .. "/sizes"):get(1)):to_equal_bits(
        gb.io.image(root .. "/sizes/image.png"):permute(3, 1, 2):float() / 255)
    end
    write("sizes/image.png", "")
    expect(function() gb.data.images(root .. "/sizes") end):to_fail("it is empty")
    -- little files are read ahead, until there is one that is not
    local file = 0
    for _, size in ipairs { #png, (8 << 10) - 1, #png, 8 << 10, #png, (8 << 10) + 1, 40000, #png } do
      for _ = 1, 5 do
        file = file + 1
        write(("ahead/a/%02d.png"):format(file), png .. ("x"):rep(size - #png))
      end
      for _, options in ipairs { {}, { keep = 20000 }, { skip_bad = true } } do
        local x = epoch_of(gb.data.images(root .. "/ahead", options), { batch_size = 33 })
        expect(x):to_have_shape(file, 3, x:size(3), x:size(4))
        expect(x:eq(x:select(1, 1)):all():item()):to_be(true)
      end
    end
    for _, content in ipairs { "", png:sub(1, 100) } do
      write("ahead/a/07.png", content)
      expect(function() epoch_of(gb.data.images(root .. "/ahead"), { batch_size = 33 }) end):to_fail("a/07.png'")
      local left = gb.data.images(root .. "/ahead", { skip_bad = true })
      expect((epoch_of(left, { batch_size = 33 })):size(1)):to_be(40) -- the one after it stands in
      expect(left:skipped()):to_be(1)
    end
  end)

  it("resizes first, and leaves bytes where no to_float is said", function()
    local dataset = gb.data.images(root .. "/classes", { size = { 5, 6 }, transform = transforms.flip { p = 0 },
      mode = "gray" })
    local x = dataset:get(1)
    expect(x):to_have_shape(5, 6, 1)
    expect(x.dtype):to_be("uint8")
    expect(gb.data.images(root .. "/classes", { size = 7 }):get(-1)):to_have_shape(3, 7, 7)
  end)

  it("without folders in it is images alone", function()
    local dataset = gb.data.images(root .. "/classes/ant")
    expect(#dataset):to_be(6)
    expect(select("#", dataset:get(1))):to_be(1)
    expect(#dataset:classes()):to_be(0)
  end)
end)

describe("mistakes about folders", function()
  it("are told with their cure", function()
    write("parts/train/ant/1.jpg", golden_file("baseline_0.jpg"))
    expect(function() gb.data.images(root .. "/parts") end):to_fail("if these are the classes, read '" .. root ..
      "/parts/train'")
    os.execute(("mkdir -p '%s/hollow/ant'"):format(root))
    expect(function() gb.data.images(root .. "/hollow") end):to_fail("fill it or remove it")
    expect(function() return gb.data.ImageFolder end):to_fail("it is gb.data.images(folder) here")
    expect(function() gb.data.lines(root) end):to_fail("it is a folder, no regular file; name a file in it")
    expect(function() transforms.compose { transforms.normalize(0.5, 0.5), transforms.to_float() } end):to_fail(
      "to_float() comes once, and before")
  end)
end)

describe("two folders, of images and masks", function()
  for i = 1, 4 do
    write(("pairs/image/%d.png"):format(i), golden_file("gray.png"))
    write(("pairs/mask/%d.png"):format(i), golden_file("gray.png"))
  end

  it("go through the same random geometry", function()
    local dataset = gb.data.images(root .. "/pairs/image", { masks = root .. "/pairs/mask", mode = "gray",
      transform = transforms.compose { transforms.random_crop(9, { padding = 2 }), transforms.flip(),
        transforms.rotate(30) } })
    for x, y in gb.data.DataLoader(dataset, { batch_size = 3, workers = 2 }):iter() do
      expect(y.dtype):to_be("int64")
      expect(x:squeeze(4):long()):to_equal_bits(y)
    end
  end)

  it("give places in levels, or palette indices", function()
    write("levels/mask/1.png", golden_file("bits.png"))
    write("levels/image/1.jpg", golden_file("gray.jpg"))
    local options = { masks = root .. "/levels/mask", levels = { 0, 255 } }
    local _, mask = gb.data.images(root .. "/levels/image", options):get(1)
    local bits = gb.io.image(folder .. "bits.png", { mode = "gray" }):squeeze(3)
    expect(mask):to_equal_bits(bits:eq(255):long())
    options.levels = { 0 }
    local levels = gb.data.images(root .. "/levels/image", options)
    expect(function() levels:get(1) end):to_fail("which 'levels' does not list")
    write("palette/mask/1.png", golden_file("palette_16.png"))
    write("palette/image/1.png", golden_file("rgb.png"))
    local _, indices = gb.data.images(root .. "/palette/image", { masks = root .. "/palette/mask" }):get(1)
    expect(indices:max():item() <= 15 and indices:max():item() > 0):to_be(true)
    expect(indices):to_equal_bits(gb.io.image(folder .. "palette_16.png", { mode = "index" }):squeeze(3):long())
  end)

  it("must go together", function()
    local function open(more) return function()
      gb.data.images(root .. "/pairs/image", { masks = root .. more })
    end end
    write("short/1.png", golden_file("gray.png"))
    expect(open("/short")):to_fail("4 images")
    expect(open("/nowhere")):to_fail("cannot open the folder")
    for i = 1, 4 do write(("small/%d.png"):format(i), golden_file("rgba.png")) end
    expect(open("/small")):to_fail("the mask has 7 x 5 pixels, its image 19 x 13")
    expect(function() gb.data.images(root .. "/pairs/image", { levels = { 1 } }) end):to_fail("give masks = folder")
  end)
end)

-- ====}

-- {==== What is damaged ====

describe("a damaged file", function()
  it("says where, in every format", function()
    for _, name in ipairs { "gray.jpg", "progressive.jpg", "rgb.png", "interlaced_rgb.png" } do
      local bytes = golden_file(name)
      for _, length in ipairs { 30, #bytes // 2, #bytes - 20 } do
        expect(function() gb.io.decode_image(bytes:sub(1, length)) end):to_fail(("ends at byte %d"):format(length))
      end
    end
    local png = golden_file("rgb.png")
    local broken = png:sub(1, 60) .. "\0\0\0\0" .. png:sub(65)
    expect(function() gb.io.decode_image(broken) end):to_fail("the PNG is damaged near byte")
    expect(function() gb.io.decode_image("") end):to_fail("it is empty")
    expect(function() gb.io.decode_image("GIF89a...") end):to_fail("neither a JPEG nor a PNG")
    expect(function() gb.io.image(root .. "/nowhere.png") end):to_fail("nowhere.png")
    write("named/a.png", broken)
    expect(function() gb.io.image(root .. "/named/a.png") end):to_fail("named/a.png': the PNG is damaged")
    expect(function() gb.io.image(root) end):to_fail("no regular file")
  end)

  it("that is cut off anywhere, or has a bit turned, is refused or read, and never more", function()
    local refused, read = 0, 0
    for _, name in ipairs { "progressive.jpg", "ycck.jpg", "optimised.jpg", "turned_6.jpg", "interlaced_palette.png",
      "sixteen_3.png" } do
      local bytes = golden_file(name)
      for at = 1, #bytes - 1, 7 do
        local turned = bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ 1 << at % 8) .. bytes:sub(at + 1)
        for _, text in ipairs { bytes:sub(1, at), turned } do
          local ok, why = pcall(gb.io.decode_image, text)
          if ok then read = read + 1 else
            refused = refused + 1
            expect(type(why)):to_be("string")
          end
        end
      end
    end
    expect(refused > 300 and read > 100):to_be(true)
  end)

  it("that claims to be huge is refused before memory is taken", function()
    local png = golden_file("rgb.png")
    local function claim(width, height)
      local chunk = "IHDR" .. string.pack(">I4I4", width, height) .. png:sub(25, 29)
      local crc = 0xffffffff
      for i = 1, #chunk do
        crc = crc ~ chunk:byte(i)
        for _ = 1, 8 do crc = crc & 1 == 1 and crc >> 1 ~ 0xedb88320 or crc >> 1 end
      end
      return png:sub(1, 12) .. chunk .. string.pack(">I4", crc ~ 0xffffffff) .. png:sub(34)
    end
    expect(function() gb.io.decode_image(claim(100000, 100000)) end):to_fail("178956970 are the most")
    local jpeg = golden_file("rgb.jpg")
    local at = jpeg:find("\xff\xc0", 1, true)
    jpeg = jpeg:sub(1, at + 4) .. string.pack(">I2I2", 65000, 65000) .. jpeg:sub(at + 9)
    expect(function() gb.io.decode_image(jpeg) end):to_fail("178956970 are the most")
  end)

  it("is passed over and counted where skip_bad says so", function()
    for i = 1, 6 do write(("bad/a/%d.jpg"):format(i), golden_file("gray.jpg")) end
    write("bad/a/1.jpg", "no image")
    write("bad/a/4.jpg", golden_file("gray.jpg"):sub(1, 200))
    expect(function() gb.data.images(root .. "/bad") end):to_fail("a/1.jpg': it is neither a JPEG nor a PNG")
    for _, workers in ipairs { 0, 3 } do
      local dataset = gb.data.images(root .. "/bad", { skip_bad = true })
      expect(dataset:skipped()):to_be(1)
      local x = epoch_of(dataset, { batch_size = 4, workers = workers })
      expect(x):to_have_shape(6, 3, 13, 19)
      expect(dataset:skipped()):to_be(2)
      expect(dataset:subset(1, 2):skipped()):to_be(2)
    end
    write("worse/a/1.jpg", "no image")
    expect(function() gb.data.images(root .. "/worse", { skip_bad = true }) end):to_fail("neither a JPEG")
  end)

  it("stops the loop at its batch, which says which it is", function()
    for i = 1, 6 do write(("late/a/%d.jpg"):format(i), golden_file("gray.jpg")) end
    write("late/a/4.jpg", golden_file("gray.jpg"):sub(1, 200))
    for _, workers in ipairs { 0, 2 } do
      local loader, seen = gb.data.DataLoader(gb.data.images(root .. "/late"), { batch_size = 1, workers = workers }), 0
      local function count() for _ in loader:iter() do seen = seen + 1 end end
      expect(count):to_fail("late/a/4.jpg': the JPEG ends at byte")
      expect(seen):to_be(3)
    end
  end)

  it("and images of two sizes are errors that say the cure", function()
    write("sizes/a/1.png", golden_file("rgb.png"))
    write("sizes/a/2.png", golden_file("rgba.png"))
    expect(function() gb.data.images(root .. "/sizes"):get(2) end):to_fail("give size = { height, width }")
    expect(gb.data.images(root .. "/sizes", { size = 4 }):get(2)):to_have_shape(3, 4, 4)
    write("empty/a/x.txt", "")
    expect(function() gb.data.images(root .. "/empty") end):to_fail("holds no .jpg, .jpeg or .png file")
    expect(function() gb.data.images(root .. "/empty/a") end):to_fail("holds no folders and no")
    expect(function() gb.data.images(root .. "/sizes", { size = { 0, 3 } }) end):to_fail("'size' is a number of pixels")
    expect(function() gb.data.DataLoader(gb.data.images(root .. "/sizes"), { workers = 65 }) end):to_fail("0 .. 64")
    expect(function() gb.data.DataLoader({ get = print }, { workers = 2 }) end):to_fail("native datasets")
  end)
end)

os.execute(("rm -r '%s'"):format(root))

-- ====}

gb.test.finish()
