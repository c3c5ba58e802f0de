from tidegate.cli.data_folder import data_folder


def test_commands_look_where_up_was_told_to_keep_its_state(tmp_path, monkeypatch):
    """The setting's own variable beats the short one, which beats the settings file."""
    monkeypatch.chdir(tmp_path)
    for name in ("TIDEGATE_HOME", "TIDEGATE_STORE__HOME", "TIDEGATE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tidegate.toml").write_text('[store]\nhome = "from-file"\n')
    assert data_folder().path == tmp_path / "from-file"
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "short"))
    assert data_folder().path == tmp_path / "short"
    monkeypatch.setenv("TIDEGATE_STORE__HOME", str(tmp_path / "long"))
    assert data_folder().path == tmp_path / "long"
