"""What every store of pictures does."""

from responses_app.protocol.pictures import StoredPicture
from responses_app.stores.base import BasePictureStore
from tests.contracts.store import new_id

PROJECT = "seeing"

RED = StoredPicture(digest="a1" * 32, media_type="image/png", width=8, height=8, content=b"\x89PNG red")
BLUE = StoredPicture(digest="b2" * 32, media_type="image/jpeg", width=640, height=480, content=b"\xff\xd8 blue")
BOTH = {RED.digest, BLUE.digest}


class PictureStoreContract:
    """Tests; a subclass gives the store `pictures`."""

    async def test_a_picture_is_found_by_its_project_and_digest(self, pictures: BasePictureStore) -> None:
        await pictures.keep(PROJECT, new_id("resp"), [RED, BLUE])
        assert await pictures.read(PROJECT, RED.digest) == RED
        assert await pictures.read(PROJECT, BLUE.digest) == BLUE
        assert set(await pictures.known(PROJECT, [*BOTH, "c3" * 32])) == BOTH
        for project, digest in (("another", RED.digest), (PROJECT, "c3" * 32), (PROJECT, "")):
            assert await pictures.read(project, digest) is None
            assert not await pictures.known(project, [digest])

    async def test_it_is_kept_once_however_often_it_comes(self, pictures: BasePictureStore) -> None:
        first, second = new_id("resp"), new_id("resp")
        for owner in (first, second, second):
            await pictures.keep(PROJECT, owner, [RED])
        await pictures.keep("another", first, [RED])
        assert await pictures.read("another", RED.digest) == RED

    async def test_one_more_owner_uses_what_is_there(self, pictures: BasePictureStore) -> None:
        await pictures.keep(PROJECT, new_id("resp"), [RED])
        assert set(await pictures.use(PROJECT, new_id("resp"), BOTH)) == {RED.digest}
        assert not await pictures.use("another", new_id("resp"), BOTH)
        assert not await pictures.use(PROJECT, new_id("resp"), [])
        assert await pictures.read("another", RED.digest) is None
