# SPDX-License-Identifier: Apache-2.0
"""Checks a picture of text elements: it has the words "a|b|c", no two texts overlap, and none lies outside.

    check_svg_words.py FILE.svg 'rank 0|samples'
"""
import sys
import xml.dom.minidom

# Widths of DejaVu Sans from ' ' to '~', in hundredths of the font's size.
WIDTH = ([32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34] + [64] * 10 +
         [34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79, 60, 79, 69, 63, 61, 73, 68, 99,
          69, 61, 69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63, 63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63,
          59, 82, 59, 59, 52, 64, 34, 64, 84])


def box_of(element):
    text = "".join(node.data for node in element.childNodes)
    size = float(element.getAttribute("font-size") or 12)
    width = sum(WIDTH[ord(c) - 32] for c in text) / 100 * size * (1.1 if element.getAttribute("font-weight") else 1)
    x, y = float(element.getAttribute("x")), float(element.getAttribute("y"))
    x -= {"middle": width / 2, "end": width}.get(element.getAttribute("text-anchor"), 0)
    return x, y - 0.75 * size, x + width, y + 0.22 * size, text


def overlap(a, b, slack=0.5):
    return a[0] < b[2] - slack and b[0] < a[2] - slack and a[1] < b[3] - slack and b[1] < a[3] - slack


def main(path, words):
    root = xml.dom.minidom.parse(path).documentElement
    width, height = float(root.getAttribute("width")), float(root.getAttribute("height"))
    boxes = [box_of(element) for element in root.getElementsByTagName("text")]
    texts = "\n".join(box[4] for box in boxes)
    assert len(root.getElementsByTagName("path")) > 10, "no drawing"
    for word in words.split("|"):
        assert word in texts, f"no {word} in: {texts}"
    for i, a in enumerate(boxes):
        assert 0 <= a[0] and a[2] <= width and a[3] <= height, f"outside: {a}"
        for b in boxes[i + 1:]:
            assert not overlap(a, b), f"over each other: {a[4]} and {b[4]}"


main(*sys.argv[1:])
