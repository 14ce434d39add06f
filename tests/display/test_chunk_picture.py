"""The picture of an array is SVG of bounded size, with a line for each cut that has room."""

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.display.chunk_picture import chunk_picture

lengths = st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1))


def drawn(*arguments):
    root = ET.fromstring(chunk_picture(*arguments))
    return root, [child.tag for child in root]


def test_a_rectangle_has_a_line_for_each_cut():
    root, tags = drawn((4, 6), (2, 3))
    assert (tags.count("polygon"), tags.count("line"), tags.count("text")) == (1, 2, 2)
    assert sorted(child.text for child in root if child.tag == "text") == ["4", "6"]
    vertical, horizontal = (child.attrib for child in root if child.tag == "line")
    assert float(vertical["x1"]) == float(vertical["x2"]) == 64  # half of 120, behind the margin
    assert horizontal["y1"] == horizontal["y2"]


def test_a_bar_and_a_box():
    assert drawn((10,), (4,))[1].count("line") == 2
    tags = drawn((2, 4, 6), (1, 2, 3))[1]
    # Two faces show each of the three cuts.
    assert (tags.count("polygon"), tags.count("line"), tags.count("text")) == (3, 6, 3)
    assert drawn((9, 2, 4, 6), (1, 1, 2, 3))[1] == tags


def test_shards_are_drawn_over_their_chunks():
    tags = drawn((8, 8), (2, 2), (4, 8))[1]
    assert tags.count("line") == 6 + 1


def test_chunks_of_different_lengths_are_not_drawn():
    assert drawn((4, 6), None)[1].count("line") == 0


def test_what_has_no_elements_has_no_picture():
    assert chunk_picture((), ()) == ""
    assert chunk_picture((3, 0), (1, 1)) == ""


@given(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=5))
def test_any_array_has_a_small_picture_inside_its_frame(axes):
    shape, chunks = zip(*axes, strict=True)
    root, tags = drawn(shape, chunks)
    assert len(tags) < 200
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert width < 400
    assert height < 250
    for child in root:
        if child.tag == "polygon":
            for point in child.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert left <= x <= left + width
                assert top <= y <= top + height
        if child.tag == "text":
            assert top + 8 <= float(child.attrib["y"]) <= top + height
