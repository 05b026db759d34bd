-- plot.lua - gb.plot: the records of what draws pictures; drawing.lua does it.

local gb, native = ...
local define, lazily = native.define, native.lazily

local plot = define("gb.plot(series: tensor|table; width?: size, height?: size, title?: string, quiet: bool = \z
  false, file?: path, x?: tensor|list, xlabel?: string, ylabel?: string, legend: bool = true, log?: \z
  \"x\"|\"y\"|\"xy\", show?: \"kitty\"|\"sixel\") -> string: Draw numbers as a curve: a list, a vector, or several \z
  of them by name. With file, a picture: .png (by libpng) or .svg, width x height pixels (800 x 480), with axes, \z
  labels and a legend; x has the positions, else they count from 1; log axes leave out what is not above 0; what is \z
  not finite is a gap. With show, the same picture on a terminal that speaks kitty's protocol or sixel. Without \z
  both, text of width x height letters (64 x 12), printed unless quiet, and returned. Example: gb.plot({ 3, 2, 1 }, \z
  { title = \"loss\" })",
  "strict", lazily("drawing", "plot"))

-- It is called, and has other pictures as fields.
gb.plot = setmetatable({}, { __call = function(_, ...) return plot(...) end, __metatable = false })

gb.plot.histogram = define("gb.plot.histogram(x: tensor|list; bins: size = 30, title?: string, quiet: bool = false, \z
  file?: path, xlabel?: string, ylabel?: string, width: size = 800, height: size = 480, show?: \"kitty\"|\"sixel\") \z
  -> string: How the elements of a tensor, or numbers, are distributed; what is not finite is left out. A picture \z
  with file (.png or .svg) or show, else text, printed unless quiet. Example: gb.plot.histogram(gb.randn(1000), { \z
  bins = 9 })",
  "strict", lazily("drawing", "plot_histogram"))

gb.plot.heatmap = define("gb.plot.heatmap(x: tensor; title?: string, quiet: bool = false, file?: path, xlabel?: \z
  string, ylabel?: string, width: size = 640, height: size = 520, low?: number, high?: number, show?: \z
  \"kitty\"|\"sixel\") -> string: A matrix as colors, its first row at the top: weights, attention, a confusion \z
  matrix. low and high are the ends of the scale, else the least and largest finite element; what is not finite is \z
  gray. A picture with file (.png or .svg) or show, else text, printed unless quiet. Errors: a tensor that is no \z
  matrix, or has more than 1,048,576 elements. Example: gb.plot.heatmap(gb.rand(4, 6))",
  "strict", lazily("drawing", "plot_heatmap"))

gb.plot.images = define("gb.plot.images(x: tensor|list; file?: path, show?: \"kitty\"|\"sixel\", quiet: bool = \z
  false, columns?: size, scale?: size, padding: count = 2, title?: string, labels?: list) -> string: A grid of \z
  pictures, as a PNG with file or on the terminal with show: a tensor [n, channels, height, width], one picture, or \z
  a list of them, as gb.io.save_image takes them. columns: in a row, else about as many as rows; scale: each pixel \z
  becomes so many, else as many as make small pictures visible; labels: a text or number under each. Errors: a file \z
  that does not end in .png. Example: local path = os.tmpname() .. \".png\" gb.plot.images(gb.rand(6, 3, 8, 8), { \z
  file = path }) os.remove(path)",
  "strict", lazily("drawing", "plot_images"))
