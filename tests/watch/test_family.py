"""The tree of a response, of rows that no server writes."""

from responses_app.watch.family import Node, _branch, _Parents


def test_a_chain_in_a_circle_has_an_end() -> None:
    path = ["a", "b", "a", "b"]
    nodes = {each: Node(each) for each in path}
    branch = _branch("a", nodes, _Parents(path), frozenset(path), depth=0)
    assert [node.id for node in branch] == ["a", "b"]
