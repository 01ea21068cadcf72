"""The section `[archive]` of the configuration, and what is wrong with it."""

from __future__ import annotations

import pathlib

import pytest

from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError


def load(folder: pathlib.Path, archive: str, more: str = "") -> Settings:
    file = folder / "treedb.toml"
    file.write_text(f"{more}\n[archive]\n{archive}\n")
    return load_settings(file, {}, folder)


def test_places_start_from_the_folder_of_the_file(tmp_path: pathlib.Path) -> None:
    settings = load(tmp_path, 'to = "disk"\nkey_file = "key"', 'data = "data"').archive
    assert (settings.to, settings.key_file) == (str(tmp_path / "disk"), tmp_path / "key")
    assert load(tmp_path, 'to = "s3://attic/p"\nregion = "eu"').archive.to == "s3://attic/p"


@pytest.mark.parametrize(
    ("archive", "more", "sentence"),
    [
        ('to = "data/x"', 'data = "data"', "archive.to is in the data directory"),
        ('to = "."', 'data = "data"', "archive.to contains the data directory"),
        ('to = "kept/x"', 'backups = "kept"', "archive.to is in the directory of backups"),
        ('to = "x"', 'engine = "memory"', "archive.to is set, but what is in memory"),
        ('to = "gs://attic/p"', "", "archive.to must be a directory, or a URL like s3://"),
        ('to = "s3://"', "", "archive.to must be like s3://bucket/prefix"),
        ('to = "s3://key:secret@attic"', "", "archive.to must be like s3://bucket/prefix"),
        ('to = "x"\nregion = "eu"', "", "archive.region is set, but the archive is a directory"),
        ('to = "s3://attic"\nendpoint = "http://a:b@c"', "", "archive.endpoint must be a URL"),
        ('key_file = "key"', "", "archive has keys, but no archive"),
        ('to = "x"\nevery_s = 0', "", "archive.every_s must be a number from 0.1 to 3600"),
        ('to = "x"\nkeep_bases = 0', "", "archive.keep_bases must be an integer from 1"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: pathlib.Path, archive: str, more: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, archive, more)
    assert sentence in str(error.value)
    assert "secret" not in str(error.value)
