-- test_plot.lua - gb.plot: text as ever, and pictures: curves with axes and a legend, histograms, heat maps, grids.
-- What the pixels are is tested in tests/c/test_canvas.c; here that pictures come to be, what an SVG says, and
-- wrong calls.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local base = os.tmpname()
os.remove(base)
local path = base .. ".svg"
local has_png = pcall(gb.io.save_image, base .. ".png", gb.zeros(2, 2))

local function read(name)
  local file <close> = assert(io.open(name, "rb"))
  local text = file:read("a")
  os.remove(name)
  return text
end

local function count(text, part) return select(2, text:gsub(part:gsub("%p", "%%%0"), "")) end

-- A PNG's sides.
local function sides(name)
  local text = read(name)
  expect(text:sub(1, 8)):to_be("\137PNG\r\n\26\n")
  return string.unpack(">I4I4", text, 17)
end

-- The points of the polylines of a color.
local function lines_of(text, color)
  local lines = {}
  for points in text:gmatch('<polyline points="([^"]*)" fill="none" stroke="' .. color .. '"') do
    local list = {}
    for x, y in points:gmatch("([%d.]+),([%d.]+)") do list[#list + 1] = { tonumber(x), tonumber(y) } end
    lines[#lines + 1] = list
  end
  return lines
end

describe("text", function()
  it("is what it was", function()
    expect(gb.plot({ 1, 2, 3 }, { height = 3, quiet = true })):to_be(
      "   3.000 |  *\n         | *\n   1.000 |*\n         +---\n          1 3")
  end)
  it("has several curves one below the other", function()
    local text = gb.plot({ b = { 1, 2 }, a = gb.tensor({ 3.0, 4.0 }) }, { height = 2, quiet = true, title = "t" })
    expect(text:find("^t\na\n.*\nb\n") ~= nil):to_be(true)
  end)
  it("has histograms and heat maps", function()
    local text = gb.plot.histogram({ 0, 0, 1, 0 / 0 }, { bins = 2, quiet = true, title = "h" })
    expect(text):to_be("h\n         0 |######################################## 2\n" ..
      "       0.5 |#################### 1\n         1 + 1 not finite")
    expect(gb.plot.heatmap(gb.tensor({ { 0.0, 1.0 }, { 0.5, 0 / 0 } }), { quiet = true })):to_be(
      "  @@\n++?\n' .:-=+*#%@' from 0 to 1")
  end)
end)

describe("curves as SVG", function()
  it("go through their points, which axes name", function()
    gb.plot({ low = { 0, 1, 2, 3 }, high = { 10, 10, 10, 10 } }, { file = path, title = "a < b & c", xlabel = "epoch",
      ylabel = "loss" })
    local text = read(path)
    expect(count(text, "a &lt; b &amp; c")):to_be(1)
    for _, word in ipairs { ">epoch<", ">loss<", ">low<", ">high<", ">2<", ">10<" } do
      expect(count(text, word) >= 1):to_be(true)
    end
    local first, second = lines_of(text, "#1f6fb4")[1], lines_of(text, "#e4761b")[1] -- high, low
    expect(#first):to_be(4)
    expect(first[1][2]):to_be(first[4][2])
    expect(first[1][2] < second[4][2] and second[4][2] < second[1][2]):to_be(true) -- upwards is less
    expect(second[2][1] - second[1][1]):to_be_near(second[4][1] - second[3][1], 0.02)
  end)
  it("have a gap where a value is not finite", function()
    gb.plot({ 1, 2, 0 / 0, 3, 4, math.huge, 5 }, { file = path })
    local text = read(path)
    expect(#lines_of(text, "#1f6fb4")):to_be(2)
    expect(count(text, "<circle")):to_be(1) -- a point alone
  end)
  it("have logarithmic axes, and positions", function()
    gb.plot({ 1, 10, 100, -1 }, { file = path, log = "y", x = { 0, 1, 2, 3 } })
    local line = lines_of(read(path), "#1f6fb4")[1]
    expect(#line):to_be(3)
    expect(line[1][2] - line[2][2]):to_be_near(line[2][2] - line[3][2], 0.02)
    gb.plot(gb.tensor({ 1.0, 2.0, 3.0 }), { file = path, log = "x", x = gb.tensor({ 1.0, 10.0, 100.0 }) })
    line = lines_of(read(path), "#1f6fb4")[1]
    expect(line[2][1] - line[1][1]):to_be_near(line[3][1] - line[2][1], 0.02)
  end)
  it("keep the lowest and the highest of very many points", function()
    local points = {}
    for i = 1, 50000 do points[i] = math.sin(i / 5000) end
    points[20000], points[20001] = 50, -50
    gb.plot(points, { file = path })
    local line, low, high = lines_of(read(path), "#1f6fb4")[1], math.huge, -math.huge
    expect(#line < 4000):to_be(true)
    for _, p in ipairs(line) do low, high = math.min(low, p[2]), math.max(high, p[2]) end
    expect(high - low > 350):to_be(true)
  end)
  it("may be of one point, or of equal or no finite ones", function()
    for _, points in ipairs { { 3 }, { 2, 2, 2 }, { 0, 0 }, { 0 / 0, 0 / 0 }, { 1e300, -1e300 }, { 1e-320, 2e-320 },
      { 1e15, 1e15 + 1 }, { math.mininteger, math.maxinteger }, { 5e-324, 1e-323 } } do
      gb.plot(points, { file = path })
      expect(count(read(path), "</svg>")):to_be(1)
      gb.plot.histogram(points, { file = path })
      expect(count(read(path), "nan")):to_be(0)
      expect(count(gb.plot.histogram(points, { quiet = true }), "nan")):to_be(0)
    end
  end)
  it("have ticks that can be told apart, however near they lie", function()
    local function ticks(points)
      local texts = {}
      gb.plot(points, { file = path })
      for text in read(path):gmatch(">([-%d.e]+)</text>") do texts[#texts + 1] = text end
      return table.concat(texts, " ", 6) -- after those of x
    end
    expect(ticks { 1000001, 1000002, 1000003 }):to_be("1000001 1000001.5 1000002 1000002.5 1000003")
    expect(ticks { 0.00031, 0.000312, 0.000314 }):to_be("0.00031 0.000311 0.000312 0.000313 0.000314")
    expect(ticks { -3e30, 0, 1e30 }):to_be("-3e30 -2e30 -1e30 0 1e30")
  end)
  it("rise between the least and the greatest whole number", function()
    gb.plot({ math.mininteger, math.maxinteger }, { file = path })
    local line = lines_of(read(path), "#1f6fb4")[1]
    expect(line[1][2] - line[2][2] > 300):to_be(true)
  end)
  it("have ends that a number can hold, on a logarithmic axis too", function()
    for _, points in ipairs { { 1.7e308, 1.7e308 }, { 5e-324, 5e-324 }, { 5e-324, 1.7e308 } } do
      for _, log in ipairs { "x", "y", "xy" } do
        gb.plot(log == "x" and { 1, 2 } or points, { file = path, log = log, x = log ~= "y" and points or nil })
        local text = read(path)
        expect(count(text, "nan") + count(text, "inf")):to_be(0)
      end
    end
    local large = { -1.7e308, 1.7e308 }
    for _, draw in ipairs { gb.plot, gb.plot.histogram, function(points, options)
      return gb.plot.heatmap(gb.tensor({ points }, { dtype = "float64" }), options)
    end } do
      for _, options in ipairs { { file = path }, { quiet = true } } do
        expect(function() draw(large, options) end):to_fail("too large to draw; give them divided by 1.7e+308")
      end
    end
    expect(io.open(path)):to_be(nil)
    local text = gb.plot.heatmap(gb.tensor({ { -1e308, 1e308 } }, { dtype = "float64" }),
      { low = 0, high = 1e-9, quiet = true })
    expect(text:sub(1, 5)):to_be("  @@\n")
  end)
end)

describe("pictures", function()
  it("are PNG of the sides asked for", function()
    if not has_png then
      expect(function() gb.plot({ 1 }, { file = base .. ".png" }) end):to_fail("PNG is not built in")
      return print("skipped: there is no libpng")
    end
    gb.plot({ a = { 1, 2 }, b = { 2, 1 } }, { file = base .. ".png", width = 300, height = 200, title = "\255\0x" })
    local width, height = sides(base .. ".png")
    expect(width):to_be(300)
    expect(height):to_be(200)
    gb.plot.histogram(gb.randn(1000), { file = base .. ".png", title = "h", xlabel = "x", ylabel = "y" })
    expect((sides(base .. ".png"))):to_be(800)
    gb.plot.heatmap(gb.rand(300, 400), { file = base .. ".PNG" })
    expect((sides(base .. ".PNG"))):to_be(640)
    gb.plot.images(gb.rand(5, 3, 8, 9), { file = base .. ".png", columns = 3, scale = 2, padding = 1 })
    width, height = sides(base .. ".png")
    expect(width):to_be(3 * 19 + 1)
    expect(height):to_be(2 * 17 + 1)
    gb.plot.images({ gb.zeros(4, 4):to("uint8"), gb.rand(1, 6, 5), gb.rand(4, 3, 3) }, { file = base .. ".png",
      title = "three", labels = { "one", 2 } })
    sides(base .. ".png")
  end)
  it("of histograms and heat maps are SVG too", function()
    gb.plot.histogram({ 1, 2, 2, 3 }, { file = path, bins = 3 })
    local text = read(path)
    expect(count(text, 'fill="#1f6fb4"')):to_be(3)
    gb.plot.heatmap(gb.tensor({ { 0.0, 1.0 }, { 0 / 0, 0.5 } }), { file = path })
    text = read(path)
    expect(count(text, 'fill="#440154"') >= 1):to_be(true)
    expect(count(text, 'fill="#fde725"') >= 1):to_be(true)
    expect(count(text, 'fill="#bbbbbb"')):to_be(1)
  end)
end)

-- The rows of a sixel picture: { { color of each pixel } }, colors as "r;g;b" in percent.
local function pixels_of_sixel(text)
  local width, height = text:match('^\27Pq"1;1;(%d+);(%d+)')
  local colors, rows, y = {}, {}, 0
  for i = 1, tonumber(height) do rows[i] = {} end
  local at, x, color = #width + #height + 10, 0, nil
  while text:sub(at, at + 1) ~= "\27\\" do
    local c = text:sub(at, at)
    local number, rgb, after = text:match("^#(%d+);2;([%d;]+)()", at)
    if number then colors[number], at = rgb, after
    elseif c == "#" then
      number, at = text:match("^#(%d+)()", at)
      color = colors[number]
    elseif c == "$" then x, at = 0, at + 1
    elseif c == "-" then x, y, at = 0, y + 6, at + 1
    else
      local times, letter, behind = text:match("^!(%d+)(.)()", at)
      if not times then times, letter, behind = 1, c, at + 1 end
      for _ = 1, times do
        x = x + 1
        for k = 0, 5 do
          if letter:byte() - 63 >> k & 1 == 1 then rows[y + k + 1][x] = color end
        end
      end
      at = behind
    end
  end
  return rows, tonumber(width), tonumber(height)
end

describe("on terminals that show pictures", function()
  local x = gb.zeros(3, 8, 5)
  x[{ 1, { 1, 8 }, { 1, 2 } }] = 1.0 -- the left is red
  it("sixel has every pixel", function()
    local text = gb.plot.images(x, { show = "sixel", scale = 1, padding = 1, quiet = true })
    local rows, width, height = pixels_of_sixel(text)
    expect(width):to_be(7)
    expect(height):to_be(10)
    for r = 1, height do
      for c = 1, width do
        local inside = r > 1 and r < 10 and c > 1 and c < 7
        expect(rows[r][c]):to_be(inside and (c <= 3 and "100;0;0" or "0;0;0") or "100;100;100")
      end
    end
  end)
  it("kitty's protocol has a PNG in pieces of 4096 letters at most", function()
    if not has_png then return print("skipped: there is no libpng") end
    local text = gb.plot(gb.randn(500), { show = "kitty", quiet = true })
    local pieces, joined = {}, {}
    for head, data in text:gmatch("\27_G([^;]*);([^\27]*)\27\\") do
      expect(#data <= 4096):to_be(true)
      pieces[#pieces + 1], joined[#joined + 1] = head, data
    end
    expect(pieces[1]):to_be("a=T,f=100,m=1")
    expect(pieces[#pieces]):to_be("m=0")
    expect(table.concat(joined):sub(1, 11)):to_be("iVBORw0KGgo") -- a PNG's first eight bytes
    expect(#table.concat(joined) % 4):to_be(0)
  end)
  it("is printed unless quiet, and not beside a file", function()
    expect(gb.plot.heatmap(gb.rand(2, 2), { show = "sixel", quiet = true }):sub(1, 3)):to_be("\27Pq")
    expect(gb.plot.histogram({ 1, 2 }, { show = "sixel", quiet = true }):sub(1, 3)):to_be("\27Pq")
    expect(function() gb.plot({ 1 }, { show = "sixel", file = path }) end):to_fail("not both")
    expect(function() gb.plot({ 1 }, { show = "vt100" }) end):to_fail("'show' must be")
    expect(function() gb.plot.images(x) end):to_fail("give 'file', or 'show'")
  end)
end)

describe("wrong calls", function()
  it("name the value", function()
    local function wrong(text, ...)
      local arguments = table.pack(...)
      expect(function() arguments[1](table.unpack(arguments, 2, arguments.n)) end):to_fail(text)
    end
    wrong("does not end in .png or .svg", gb.plot, { 1 }, { file = base .. ".gif" })
    wrong("'width' is 10 pixels", gb.plot, { 1 }, { file = path, width = 10 })
    wrong("'height' is 9999 pixels", gb.plot, { 1 }, { file = path, height = 9999 })
    wrong("'x' has 2 numbers, but the curve has 3", gb.plot, { 1, 2, 3 }, { file = path, x = { 1, 2 } })
    wrong("no value is above 0", gb.plot, { -1, 0 }, { file = path, log = "y" })
    wrong("not both at once", gb.plot, { 1, a = { 1 } }, { quiet = true })
    wrong("'a' must be a list of numbers", gb.plot, { a = 1 }, { quiet = true })
    wrong("[2] is a string", gb.plot, { a = { 1, "2" } }, { quiet = true })
    wrong("there are no points", gb.plot, { a = {} }, { quiet = true })
    wrong("cannot", gb.plot, { 1 }, { file = "/no/such/folder/x.svg" })
    wrong("'bins' is 2000", gb.plot.histogram, { 1 }, { bins = 2000 })
    wrong("no elements", gb.plot.histogram, gb.zeros(0))
    wrong("it takes a matrix", gb.plot.heatmap, gb.zeros(3))
    wrong("is no range", gb.plot.heatmap, gb.zeros(3, 3), { low = 2, high = 1 })
    wrong("too many for an SVG", gb.plot.heatmap, gb.zeros(300, 300), { file = path })
    wrong("does not end in .png", gb.plot.images, gb.zeros(1, 3, 2, 2), { file = path })
    wrong("there are no pictures", gb.plot.images, {}, { file = base .. ".png" })
    wrong("[1] is a number", gb.plot.images, { 1 }, { file = base .. ".png" })
    wrong("a picture is", gb.plot.images, gb.zeros(5), { file = base .. ".png" })
    wrong("give fewer pictures", gb.plot.images, gb.zeros(9, 3, 100, 100), { file = base .. ".png", scale = 1000 })
    expect(io.open(path)):to_be(nil) -- nothing half done is left
  end)
end)

os.remove(base .. ".png")
gb.test.finish()
