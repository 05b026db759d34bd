-- drawing.lua - what gb.plot does: curves, histograms, heat maps and grids of pictures; as text on the terminal, or
-- drawn into a PNG or SVG file. A picture is laid out once and drawn on a surface: the engine's canvas (io/canvas.h) or
-- a list of SVG elements.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local is_tensor = gb.is_tensor
local format, gsub, rep, lower, match, concat = string.format, string.gsub, string.rep, string.lower, string.match,
  table.concat
local floor, ceil, abs, min, max, huge, log = math.floor, math.ceil, math.abs, math.min, math.max, math.huge, math.log
local sort, insert, unpack = table.sort, table.insert, table.unpack

local INK, PALE, GRID = 0x222222, 0x666666, 0xdddddd
local COLORS = { 0x1f6fb4, 0xe4761b, 0x2c9a4a, 0xc9343a, 0x7d57b1, 0x8a5a4b, 0xd667ad, 0x6f6f6f, 0xa8a52a, 0x27a9bd }
-- from low to high, even steps of lightness
local HEAT = { { 68, 1, 84 }, { 72, 40, 120 }, { 62, 74, 137 }, { 49, 104, 142 }, { 38, 130, 142 }, { 31, 158, 137 },
  { 53, 183, 121 }, { 109, 205, 89 }, { 180, 222, 44 }, { 253, 231, 37 } }
local SMALL, NORMAL, LARGE = 12, 14, 17 -- sizes of text, in pixels

local function finite(x) return x == x and abs(x) ~= huge end

local LARGEST = 1e305 -- on an even scale; sums and steps of such numbers are still finite

-- Refuse values that an even scale cannot hold. Gives the largest.
local function check_size(who, low, high)
  local largest = max(abs(low), abs(high))
  if largest <= LARGEST then return largest end
  fail(format("%s: the values from %g to %g are too large to draw; give them divided by %g", who, low, high, largest))
end

-- The ends of an even scale; those with nothing between them are moved apart, by 0.5 or this share of them.
local function range_around(who, low, high, share)
  local largest = check_size(who, low, high)
  if high - low > max(largest * 1e-12, 1 / LARGEST) then return low, high end
  local around = max(largest * share, 0.5)
  return low - around, high + around
end

-- {==== surfaces ==== --

local Png, Svg = {}, {}
Png.__index, Svg.__index = Png, Svg

local function png(width, height)
  return setmetatable({ canvas = native.canvas_open(width, height), width = width, height = height }, Png)
end

function Png:clip(...) native.canvas_clip(self.canvas, ...) end
function Png:unclip() native.canvas_clip(self.canvas, 0, 0, self.width, self.height) end
function Png:stroke(points, width, color, alpha) native.canvas_stroke(self.canvas, points, width, color, alpha or 1) end
function Png:fill(left, top, right, bottom, color, alpha)
  native.canvas_fill(self.canvas, left, top, right, bottom, color, alpha or 1)
end

-- anchor: how much of the text lies before (x, y), from 0 to 1.
function Png:text(x, y, size, text, color, anchor, turned)
  text = gsub(text, "%z", " ")
  local shift = native.text_width(text, size) * (anchor or 0)
  native.canvas_text(self.canvas, turned and x or x - shift, turned and y + shift or y, size, turned or false, text,
    color)
end
function Png:image(left, top, right, bottom, pixels)
  native.canvas_image(self.canvas, left, top, right, bottom, pixels)
end
function Png:save(path)
  native.canvas_save(self.canvas, path)
  self.canvas:close()
end

-- The text that draws it on a terminal that speaks this protocol.
function Png:shown(protocol)
  local text = native.canvas_show(self.canvas, protocol)
  self.canvas:close()
  return text
end

local function svg(width, height)
  return setmetatable({ parts = {}, width = width, height = height, clips = 0 }, Svg)
end

-- A coordinate with two decimals at most.
local function short(x) return (gsub(gsub(format("%.2f", x), "0+$", ""), "%.$", "")) end

local function hex(color) return format("#%06x", color) end

local entities = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }
-- Text as XML has it: no control characters, UTF-8.
local function xml(text)
  if not utf8.len(text) then text = gsub(text, "[\128-\255]", "?") end
  return (gsub(gsub(text, "[%c\127]", " "), '[&<>"]', entities))
end

local function add(self, text, ...) self.parts[#self.parts + 1] = format(text, ...) end

local function alpha_text(name, alpha) return alpha and alpha < 1 and format(' %s="%s"', name, short(alpha)) or "" end

function Svg:clip(left, top, right, bottom)
  self.clips = self.clips + 1
  add(self, '<clipPath id="c%d"><rect x="%s" y="%s" width="%s" height="%s"/></clipPath><g clip-path="url(#c%d)">',
    self.clips, short(left), short(top), short(right - left), short(bottom - top), self.clips)
end
function Svg:unclip() add(self, "</g>") end
function Svg:stroke(points, width, color, alpha)
  local parts = {}
  for i = 1, #points, 2 do parts[#parts + 1] = short(points[i]) .. "," .. short(points[i + 1]) end
  if #parts == 1 then
    return add(self, '<circle cx="%s" cy="%s" r="%s" fill="%s"%s/>', short(points[1]), short(points[2]),
      short(width / 2), hex(color), alpha_text("fill-opacity", alpha))
  end
  add(self, '<polyline points="%s" fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round" \z
    stroke-linecap="round"%s/>', concat(parts, " "), hex(color), short(width), alpha_text("stroke-opacity", alpha))
end
function Svg:fill(left, top, right, bottom, color, alpha)
  add(self, '<rect x="%s" y="%s" width="%s" height="%s" fill="%s"%s shape-rendering="crispEdges"/>',
    short(left), short(top), short(right - left), short(bottom - top), hex(color), alpha_text("fill-opacity", alpha))
end
function Svg:text(x, y, size, text, color, anchor, turned)
  local names = { [0] = "start", [0.5] = "middle", [1] = "end" }
  add(self, '<text x="%s" y="%s" font-size="%s" fill="%s" text-anchor="%s"%s>%s</text>', short(x), short(y),
    short(size), hex(color), names[anchor or 0], turned and format(' transform="rotate(-90 %s %s)"', short(x), short(y))
    or "", xml(text))
end
function Svg:save(path)
  native.write_file(path, format('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" \z
    font-family="Helvetica, Arial, sans-serif">\n<rect width="100%%" height="100%%" fill="#ffffff"/>\n', self.width,
    self.height, self.width, self.height) .. concat(self.parts, "\n") .. "\n</svg>\n")
end

local MOST_SIDE = 8192

-- A surface for a file, by the end of its name, or for a terminal that shows pictures.
local function surface_for(who, options, width, height)
  local file = options.file
  for name, side in pairs { width = width, height = height } do
    if side < 100 or side > MOST_SIDE then
      fail(format("%s: '%s' is %d pixels; a picture has 100 to %d", who, name, side, MOST_SIDE))
    end
  end
  local kind = file and match(lower(file), "%.(%w+)$")
  if kind == "png" or not file then return png(width, height) end
  if kind == "svg" then return svg(width, height) end
  fail(format("%s: '%s' does not end in .png or .svg", who, file))
end

-- ====} --

-- Write what was drawn to its file, or print it on the terminal.
local function finish(surface, options)
  if options.file then
    surface:save(options.file)
    return options.file
  end
  local text = surface:shown(options.show)
  if not options.quiet then print(text) end
  return text
end

-- A picture goes to a file or to the terminal.
local function check_place(who, options)
  if options.file and options.show then fail(format("%s: give 'file' or 'show', not both", who)) end
  return options.file or options.show
end

-- {==== axes ==== --

-- Round steps that cut a range into about `count` parts, and the values on them.
local function linear_ticks(low, high, count)
  local raw = (high - low) / max(count, 1)
  local power = 10.0 ^ floor(log(raw, 10))
  local step = power * 10
  for _, times in ipairs { 1, 2, 5 } do
    if raw <= power * times * 1.0000001 then
      step = power * times
      break
    end
  end
  local ticks, first = {}, ceil(low / step - 1e-9)
  for i = first, min(floor(high / step + 1e-9), first + 100) do ticks[#ticks + 1] = i * step end
  return ticks, step
end

-- A number on an axis of this step, with the digits that tell it from its neighbours.
local function tick_text(value, step)
  local size = max(abs(value), step)
  if abs(value) < step * 1e-6 then return "0" end
  if size >= 1e6 or size < 1e-3 then
    local digits = min(floor(log(size, 10)) - floor(log(step, 10) + 1e-9) + 1, 17)
    local text = gsub(gsub(format("%." .. digits .. "g", value), "e%+?(%-?)0*", "e%1"), "(%.%d-)0+e", "%1e")
    text = gsub(text, "%.e", "e")
    return text
  end
  return format("%." .. max(0, ceil(-log(step, 10) - 1e-9)) .. "f", value)
end

-- Ticks at these multiples of each (of every n-th) power of ten.
local function log_ticks(from, to, multiples, every)
  local ticks = {}
  for power = floor(from), ceil(to) do
    for _, times in ipairs(multiples) do
      local at, value = (power + log(times, 10) - from) / (to - from), times * 10.0 ^ power
      if power % every == 0 and at >= -1e-9 and at <= 1 + 1e-9 and value > 0 and finite(value) then
        ticks[#ticks + 1] = { at, tick_text(value, 10.0 ^ power / (times % 1 > 0 and 10 or 1)) }
      end
    end
  end
  return ticks
end

-- An axis: where a value lies (0 .. 1), and its ticks { at, text }.
local function axis(low, high, is_log, count)
  if is_log then
    local from, to = log(low, 10), log(high, 10)
    if to - from < 1e-9 then from, to = from - 0.5, to + 0.5 end
    local ticks = log_ticks(from, to, { 1 }, max(1, ceil((to - from) / count)))
    if #ticks < 4 then ticks = log_ticks(from, to, { 1, 2, 5 }, 1) end
    if #ticks < 3 then ticks = log_ticks(from, to, { 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9 }, 1) end
    return function(v) return v > 0 and (log(v, 10) - from) / (to - from) or 0 / 0 end, ticks
  end
  low, high = range_around("plot", low, high, 0.5)
  local ticks, values, step = {}, linear_ticks(low, high, count)
  for i, v in ipairs(values) do ticks[i] = { (v - low) / (high - low), tick_text(v, step) } end
  return function(v) return (v - low) / (high - low) end, ticks
end

-- The frame of a picture: title, axes with ticks, grid, labels. Gives the box that values are drawn in.
local function frame(surface, options, x_ticks, y_ticks, right)
  local widest = 0
  for _, tick in ipairs(y_ticks) do widest = max(widest, native.text_width(tick[2], SMALL)) end
  local box = { left = 18 + widest + (options.ylabel and 24 or 4), right = surface.width - 22 - (right or 0),
    top = options.title and 46 or 20, bottom = surface.height - 34 - (options.xlabel and 22 or 0) }
  if box.right - box.left < 20 or box.bottom - box.top < 20 then
    fail("plot: the picture is too small for its labels; make 'width' and 'height' larger")
  end
  box.x = function(at) return box.left + at * (box.right - box.left) end
  box.y = function(at) return box.bottom - at * (box.bottom - box.top) end
  for _, tick in ipairs(x_ticks) do
    local x = floor(box.x(tick[1])) + 0.5
    if not options.plain then surface:stroke({ x, box.top, x, box.bottom }, 1, GRID) end
    surface:stroke({ x, box.bottom, x, box.bottom + 4 }, 1, PALE)
    surface:text(box.x(tick[1]), box.bottom + 19, SMALL, tick[2], INK, 0.5)
  end
  for _, tick in ipairs(y_ticks) do
    local y = floor(box.y(tick[1])) + 0.5
    if not options.plain then surface:stroke({ box.left, y, box.right, y }, 1, GRID) end
    surface:stroke({ box.left - 4, y, box.left, y }, 1, PALE)
    surface:text(box.left - 8, box.y(tick[1]) + 4, SMALL, tick[2], INK, 1)
  end
  if options.title then
    surface:text((box.left + box.right) / 2, 29, LARGE, options.title, INK, 0.5)
  end
  if options.xlabel then
    surface:text((box.left + box.right) / 2, surface.height - 12, NORMAL, options.xlabel, INK, 0.5)
  end
  if options.ylabel then surface:text(20, (box.top + box.bottom) / 2, NORMAL, options.ylabel, INK, 0.5, true) end
  return box
end

-- The left and lower edge, over what was drawn.
local function edges(surface, box)
  local left, bottom = floor(box.left) + 0.5, floor(box.bottom) + 0.5
  surface:stroke({ left, box.top, left, bottom, box.right, bottom }, 1, PALE)
end

-- Names beside their colors, in the corner where least was drawn.
local function legend(surface, box, series, crowd)
  local widest = 0
  for _, s in ipairs(series) do widest = max(widest, native.text_width(s.name, SMALL)) end
  local width, height = widest + 48, 20 * #series + 10
  local corners = { { 1, 1 }, { 0, 1 }, { 1, 0 }, { 0, 0 } } -- right or left, top or bottom
  local best, least = corners[1], huge
  for _, corner in ipairs(corners) do
    local count = crowd(corner[1], corner[2], width / (box.right - box.left), height / (box.bottom - box.top))
    if count < least then best, least = corner, count end
  end
  local left = best[1] == 1 and box.right - width - 8 or box.left + 8
  local top = best[2] == 1 and box.top + 8 or box.bottom - height - 8
  surface:fill(left, top, left + width, top + height, 0xffffff, 0.85)
  surface:stroke({ left, top, left + width, top, left + width, top + height, left, top + height, left, top }, 1, GRID)
  for i, s in ipairs(series) do
    local y = top + 20 * i - 5
    surface:stroke({ left + 10, y, left + 32, y }, 3, s.color)
    surface:text(left + 40, y + 4, SMALL, s.name, INK)
  end
end

-- ====} --

-- {==== numbers that recipes give ==== --

-- The points as a list of numbers of our own.
local function points_of(given, who)
  local points = is_tensor(given) and given:detach():flatten():tolist() or given
  if type(points) ~= "table" or #points == 0 then
    fail(format("%s: there are no points; give a list of numbers or a vector", who or "plot"))
  end
  local count = #points
  for key in next, points do -- behind a gap, or by name
    if math.type(key) ~= "integer" or key < 1 or key > count then
      fail(format("%s: points must be numbers, but [%d] is nil, and there is [%s]", who or "plot", count + 1,
        tostring(key)))
    end
  end
  for i = 1, count do
    local y = points[i]
    if is_tensor(y) and y:numel() == 1 then y = y:item() end
    if type(y) ~= "number" then
      fail(format("%s: points must be numbers, but [%d] is a %s", who or "plot", i, type(y)))
    end
    points[i] = y + 0.0 -- the difference of two whole numbers could wrap
  end
  return points
end

-- What is drawn: { { name =, y = points }, ... }; a list or tensor is one, a table by name several, sorted.
local function series_of(given, who)
  if is_tensor(given) then return { { name = "", y = points_of(given, who) } } end
  local names = {}
  for name in next, given do
    if type(name) == "string" then names[#names + 1] = name end
  end
  if #names == 0 then return { { name = "", y = points_of(native.copy(given), who) } } end
  if #given > 0 then fail(format("%s: give a list of numbers, or lists by name, not both at once", who)) end
  sort(names)
  local series = {}
  for i, name in ipairs(names) do
    local points = given[name]
    if type(points) ~= "table" and not is_tensor(points) then
      fail(format("%s: '%s' must be a list of numbers or a vector, got %s", who, name, type(points)))
    end
    series[i] = { name = name, y = points_of(is_tensor(points) and points or native.copy(points), who) }
  end
  return series
end

-- A width or height that fits a screen, or a very large one.
local function check_side(name, size)
  if size > 1000 then fail(format("plot: '%s' must be a whole number from 1 to 1000, got %d", name, size)) end
  return size
end

-- ====} --

-- {==== curves ==== --

-- {---- as text ---- --

-- Average points into `width` columns.
local function columns_of(points, width)
  local columns = {}
  for c = 1, min(width, #points) do
    local first, last = (c - 1) * #points // min(width, #points) + 1, c * #points // min(width, #points)
    local sum = 0
    for i = first, last do sum = sum + points[i] end
    columns[c] = sum / (last - first + 1)
  end
  return columns
end

local function curve_text(points, title, width, height)
  local columns = columns_of(points, width)
  local low, high = huge, -huge
  for _, y in ipairs(columns) do
    if finite(y) then low, high = min(low, y), max(high, y) end
  end
  if low > high then low, high = 0, 1 end
  check_size("plot", low, high)
  local span = high > low and high - low or 1
  local lines = title and { title } or {}
  for row = height, 1, -1 do
    local cells = {}
    for c, y in ipairs(columns) do
      local at = floor((y - low) / span * (height - 1) + 0.5) + 1
      cells[c] = at == row and "*" or " "
    end
    local label = row == height and format("%8.3f", high) or row == 1 and format("%8.3f", low) or rep(" ", 8)
    lines[#lines + 1] = label .. " |" .. (gsub(concat(cells), "%s+$", ""))
  end
  lines[#lines + 1] = rep(" ", 8) .. " +" .. rep("-", #columns)
  lines[#lines + 1] = rep(" ", 10) .. "1" .. rep(" ", max(#columns - 1 - #tostring(#points), 1)) .. #points
  return concat(lines, "\n")
end

-- ---- } --

-- The least and largest of all series that can be drawn; at least one of them.
local function range_of(series, key, is_log, who)
  local low, high = huge, -huge
  for _, s in ipairs(series) do
    for _, v in ipairs(s[key]) do
      if finite(v) and (v > 0 or not is_log) then low, high = min(low, v), max(high, v) end
    end
  end
  if low > high then
    if is_log then fail(format("%s: no value is above 0, so none can be drawn on a logarithmic axis", who)) end
    return 0.0, 1.0
  end
  return low, high
end

-- Points on the surface, as pieces without gaps. Of very many, the lowest and the highest of every half pixel.
local function pieces_of(s, to_x, to_y, box)
  local pieces, piece, cell = {}, {}, nil
  local function flush()
    if cell then
      local a, b = cell.low, cell.high
      if cell.low_first then a, b = b, a end
      insert(piece, cell.x)
      insert(piece, b)
      if a ~= b then
        insert(piece, cell.x)
        insert(piece, a)
      end
      cell = nil
    end
  end
  local dense = #s.y > 4 * (box.right - box.left)
  for i, value in ipairs(s.y) do
    local x, y = box.x(to_x(s.x[i])), box.y(to_y(value))
    if not finite(x) or not finite(y) then
      flush()
      if #piece > 0 then pieces[#pieces + 1] = piece end
      piece = {}
    elseif not dense then
      insert(piece, x)
      insert(piece, y)
    else
      local column = floor(2 * x)
      if cell and cell.column ~= column then flush() end
      if not cell then cell = { column = column, x = x, low = y, high = y, low_first = true }
      elseif y < cell.low then cell.low, cell.low_first = y, false
      elseif y > cell.high then cell.high, cell.low_first = y, true end
    end
  end
  flush()
  if #piece > 0 then pieces[#pieces + 1] = piece end
  return pieces
end

local function draw_curves(series, options)
  local surface = surface_for("plot", options, options.width or 800, options.height or 480)
  local x_log, y_log = options.log == "x" or options.log == "xy", options.log == "y" or options.log == "xy"
  local named = 0
  for i, s in ipairs(series) do
    s.x = options.x and points_of(is_tensor(options.x) and options.x or native.copy(options.x)) or {}
    if options.x and #s.x ~= #s.y then
      fail(format("plot: 'x' has %d numbers, but %s has %d", #s.x, s.name ~= "" and "'" .. s.name .. "'" or "the curve",
        #s.y))
    end
    for k = #s.x + 1, #s.y do s.x[k] = k end
    s.color = COLORS[(i - 1) % #COLORS + 1]
    named = named + (s.name ~= "" and 1 or 0)
  end
  local x_low, x_high = range_of(series, "x", x_log, "plot")
  local y_low, y_high = range_of(series, "y", y_log, "plot")
  if y_log then y_low, y_high = y_low / 1.15, min(y_high * 1.15, 0x1.fffffffffffffp1023)
  else
    check_size("plot", y_low, y_high)
    local space = 0.04 * (y_high - y_low)
    y_low, y_high = y_low - space, y_high + space
  end
  local to_x, x_ticks = axis(x_low, x_high, x_log, max(2, surface.width // 90))
  local to_y, y_ticks = axis(y_low, y_high, y_log, max(2, surface.height // 60))
  local box = frame(surface, options, x_ticks, y_ticks)
  surface:clip(box.left, box.top - 2, box.right + 2, box.bottom + 2)
  for _, s in ipairs(series) do
    for _, piece in ipairs(pieces_of(s, to_x, to_y, box)) do surface:stroke(piece, #piece == 2 and 6 or 2, s.color) end
  end
  surface:unclip()
  edges(surface, box)
  if options.legend and named > 0 then
    legend(surface, box, series, function(right, top, width, height)
      local count = 0
      for _, s in ipairs(series) do
        for i = 1, #s.y, max(1, #s.y // 400) do
          local x, y = to_x(s.x[i]), to_y(s.y[i])
          local in_x = right == 1 and x > 1 - width or right == 0 and x < width
          local in_y = top == 1 and y > 1 - height or top == 0 and y < height
          if in_x and in_y then count = count + 1 end
        end
      end
      return count
    end)
  end
  return finish(surface, options)
end

function native.late.plot(given, options)
  local series, texts = series_of(given, "plot"), {}
  if check_place("plot", options) then return draw_curves(series, options) end
  local width, height = check_side("width", options.width or 64), check_side("height", options.height or 12)
  for i, s in ipairs(series) do
    local title = i == 1 and options.title or nil
    if s.name ~= "" then title = title and title .. "\n" .. s.name or s.name end
    texts[i] = curve_text(s.y, title, width, height)
  end
  local text = concat(texts, "\n")
  if not options.quiet then print(text) end
  return text
end

-- ====} --

-- {==== histograms ==== --

-- How many values lie in each of `bins` equal parts.
local function count_bins(points, bins)
  local low, high, counts, left_out = huge, -huge, {}, 0
  for _, v in ipairs(points) do
    if finite(v) then low, high = min(low, v), max(high, v) else left_out = left_out + 1 end
  end
  if low > high then low, high = 0.0, 1.0 end
  low, high = range_around("histogram", low, high, 1e-9)
  for i = 1, bins do counts[i] = 0 end
  for _, v in ipairs(points) do
    if finite(v) then
      local bin = min(bins, floor((v - low) / (high - low) * bins) + 1)
      counts[bin] = counts[bin] + 1
    end
  end
  return counts, low, high, left_out
end

local function histogram_text(counts, low, high, title, left_out)
  local most, lines = max(1, unpack(counts)), title and { title } or {}
  for i, count in ipairs(counts) do
    local from = low + (i - 1) / #counts * (high - low)
    lines[#lines + 1] = format("%10.4g |%s %d", from, rep("#", ceil(40 * count / most)), count)
  end
  lines[#lines + 1] = format("%10.4g +%s", high, left_out > 0 and format(" %d not finite", left_out) or "")
  return concat(lines, "\n")
end

function native.late.plot_histogram(x, options)
  if options.bins > 1000 then fail(format("histogram: 'bins' is %d; at most 1000", options.bins)) end
  if is_tensor(x) and x:numel() == 0 then fail("histogram: the tensor has no elements") end
  local points = points_of(is_tensor(x) and x or native.copy(x), "histogram")
  local counts, low, high, left_out = count_bins(points, options.bins)
  if not check_place("histogram", options) then
    local text = histogram_text(counts, low, high, options.title, left_out)
    if not options.quiet then print(text) end
    return text
  end
  local surface = surface_for("histogram", options, options.width, options.height)
  local most = max(1, unpack(counts))
  local _, x_ticks = axis(low, high, false, max(2, surface.width // 90))
  local to_y, y_ticks = axis(0, most * 1.05, false, max(2, surface.height // 60))
  local box = frame(surface, options, x_ticks, y_ticks)
  for i, count in ipairs(counts) do
    if count > 0 then
      surface:fill(box.x((i - 1) / #counts) + 0.5, box.y(to_y(count)), box.x(i / #counts) - 0.5, box.bottom,
        COLORS[1], 0.85)
    end
  end
  edges(surface, box)
  return finish(surface, options)
end

-- ====} --

-- {==== heat maps ==== --

-- The color of a share from 0 to 1.
local function heat(share)
  local at = min(max(share, 0), 1) * (#HEAT - 1)
  local i = min(floor(at), #HEAT - 2)
  local a, b, t, color = HEAT[i + 1], HEAT[i + 2], at - i, 0
  for c = 1, 3 do color = color << 8 | floor(a[c] + t * (b[c] - a[c]) + 0.5) end
  return color
end

-- Rows of colors as pixels that a canvas takes.
local function pixels_of(rows)
  local bytes = {}
  for r, row in ipairs(rows) do
    local line = {}
    for c, color in ipairs(row) do
      line[c] = string.char(color >> 16 & 255, color >> 8 & 255, color & 255)
    end
    bytes[r] = concat(line)
  end
  return gb.from_bytes(concat(bytes), "uint8", { #rows, #rows[1], 3 })
end

local SHADES = " .:-=+*#%@"

local function heatmap_text(values, low, high, title)
  local lines = title and { title } or {}
  for r, row in ipairs(values) do
    local cells = {}
    for c, v in ipairs(row) do
      local i = finite(v) and max(0, min(9, floor((v - low) / (high - low) * 10))) + 1 or 0
      cells[c] = i == 0 and "?" or rep(string.sub(SHADES, i, i), 2)
    end
    lines[#lines + 1] = concat(cells)
    if r == 200 then break end
  end
  lines[#lines + 1] = format("'%s' from %.4g to %.4g", SHADES, low, high)
  return concat(lines, "\n")
end

-- Ticks in the middle of cells 1 .. n, from the left or from above.
local function cell_ticks(n, count, down)
  local ticks = {}
  for i = 1, n, max(1, ceil(n / count)) do
    local at = (i - 0.5) / n
    ticks[#ticks + 1] = { down and 1 - at or at, tostring(i) }
  end
  return ticks
end

-- The bar of colors at the right, with the numbers they stand for.
local function color_bar(surface, box, low, high)
  local left, right = box.right + 18, box.right + 34
  local height = box.bottom - box.top
  for i = 0, 99 do
    surface:fill(left, box.top, right, box.bottom - i / 100 * height, heat(i / 99)) -- what is above follows
  end
  local _, ticks = axis(low, high, false, max(2, surface.height // 80))
  for _, tick in ipairs(ticks) do
    local y = box.y(tick[1])
    surface:stroke({ right, y, right + 4, y }, 1, PALE)
    surface:text(right + 8, y + 4, SMALL, tick[2], INK)
  end
end

function native.late.plot_heatmap(x, options)
  if x:dim() ~= 2 or x:numel() == 0 or x:numel() > 1 << 20 then
    fail(format("heatmap: it takes a matrix of 1 to %d elements, this tensor is [%s]", 1 << 20,
      concat(x.shape, ", ")))
  end
  local values, low, high = x:detach():double():tolist(), huge, -huge
  for _, row in ipairs(values) do
    for _, v in ipairs(row) do
      if finite(v) then low, high = min(low, v), max(high, v) end
    end
  end
  if low > high then low, high = 0.0, 1.0 end
  low, high = options.low or low, options.high or high
  if not finite(low) or not finite(high) or low > high then
    fail(format("heatmap: the scale from 'low' %g to 'high' %g is no range", low, high))
  end
  low, high = range_around("heatmap", low, high, 1e-9)
  if not check_place("heatmap", options) then
    local text = heatmap_text(values, low, high, options.title)
    if not options.quiet then print(text) end
    return text
  end
  local surface = surface_for("heatmap", options, options.width, options.height)
  local rows, columns = #values, #values[1]
  options.plain = true
  local box = frame(surface, options, cell_ticks(columns, max(2, surface.width // 50)),
    cell_ticks(rows, max(2, surface.height // 30), true), 80)
  local colors = {}
  for r, row in ipairs(values) do
    colors[r] = {}
    for c, v in ipairs(row) do colors[r][c] = finite(v) and heat((v - low) / (high - low)) or 0xbbbbbb end
  end
  if surface.image then
    surface:image(box.left, box.top, box.right, box.bottom, pixels_of(colors))
  else
    if rows * columns > 1 << 16 then
      fail(format("heatmap: %d cells are too many for an SVG; write a .png", rows * columns))
    end
    for r, row in ipairs(colors) do
      for c, color in ipairs(row) do
        surface:fill(box.x((c - 1) / columns), box.y(1 - (r - 1) / rows), box.x(c / columns) + 0.3,
          box.y(1 - r / rows) + 0.3, color)
      end
    end
  end
  color_bar(surface, box, low, high)
  return finish(surface, options)
end

-- ====} --

-- {==== grids of pictures ==== --

-- The pictures as a list of uint8 [height, width, 3].
local function pictures_of(x)
  local list = {}
  if is_tensor(x) then
    local dims = x:dim()
    if dims == 4 then
      for i = 1, x.shape[1] do list[i] = x[i] end
    else list[1] = x end
  else
    for i = 1, #x do
      if not is_tensor(x[i]) then fail(format("images: [%d] is a %s, no tensor", i, type(x[i]))) end
      list[i] = x[i]
    end
  end
  if #list == 0 then fail("images: there are no pictures") end
  for i, picture in ipairs(list) do
    picture = native.pixels_of("images", picture)
    if picture.shape[3] == 1 then picture = picture:expand(-1, -1, 3) end
    list[i] = picture:narrow(3, 1, 3):contiguous()
  end
  return list
end

function native.late.plot_images(x, options)
  if not check_place("images", options) then
    fail("images: give 'file', or 'show' with the protocol of a terminal that shows pictures")
  end
  if options.file and match(lower(options.file), "%.(%w+)$") ~= "png" then
    fail(format("images: '%s' does not end in .png", options.file))
  end
  local list = pictures_of(x)
  local columns = min(options.columns or ceil(math.sqrt(#list)), #list)
  local height, width = 0, 0
  for _, picture in ipairs(list) do
    height, width = max(height, picture.shape[1]), max(width, picture.shape[2])
  end
  local scale = options.scale or max(1, min(64 // max(height, width), 16))
  local under, over = options.labels and 18 or 0, options.title and 40 or 0
  local padding, rows = options.padding, ceil(#list / columns)
  local cell_width, cell_height = width * scale + padding, height * scale + padding + under
  local total_width, total_height = columns * cell_width + padding, rows * cell_height + padding + over
  if total_width > MOST_SIDE or total_height > MOST_SIDE then
    fail(format("images: the grid would have %d x %d pixels, at most %d on a side; give fewer pictures, or a \z
      smaller 'scale'", total_width, total_height, MOST_SIDE))
  end
  local surface = png(total_width, total_height)
  if options.title then surface:text(total_width / 2, 26, LARGE, options.title, INK, 0.5) end
  for i, picture in ipairs(list) do
    local left = padding + (i - 1) % columns * cell_width
    local top = over + padding + (i - 1) // columns * cell_height
    surface:image(left, top, left + picture.shape[2] * scale, top + picture.shape[1] * scale, picture)
    local label = options.labels and options.labels[i]
    if type(label) == "string" or type(label) == "number" then
      surface:text(left + width * scale / 2, top + height * scale + 14, SMALL, tostring(label), INK, 0.5)
    end
  end
  return finish(surface, options)
end

-- ====} --
