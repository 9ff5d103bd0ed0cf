"""What the server of the page refuses; none of it starts Spark."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from icefloe.errors import StatementError
from icefloe.ui.sql_box import read_only
from support.page import HOST, PORT, SCRIPT, TOKEN, orders

FACTS = (
    "/api/lake",
    "/api/tables",
    "/api/table?table=shop.orders",
    "/api/timeline?table=shop.orders",
    "/api/files?table=shop.orders",
    "/api/files?table=shop.orders&partition=region=us",
    "/api/columns?table=shop.orders",
    "/api/overlap?table=shop.orders&column=id",
    "/api/opened?table=shop.orders&where=id = 1",
    "/api/upkeep?table=shop.orders",
    "/api/expired?table=shop.orders",
)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": ""}])
@pytest.mark.parametrize("path", [*FACTS, "/none", "/API/lake", "//api/lake", "/api%2Flake"])
def test_facts_need_the_token(shop_client, path, headers):
    del shop_client.headers["authorization"]
    answer = shop_client.get(path, headers=headers)
    assert answer.status_code == 401
    assert "token" in answer.json()["error"]
    assert "orders" not in answer.text


def test_statements_need_the_token(shop_client):
    del shop_client.headers["authorization"]
    answer = shop_client.post("/api/sql", json={"text": "SELECT 1"})
    assert answer.status_code == 401


def test_the_token_in_a_cookie_or_in_the_address_of_facts_is_not_enough(shop_client):
    del shop_client.headers["authorization"]
    assert shop_client.get(f"/api/lake?token={TOKEN}").status_code == 401
    shop_client.cookies.set("token", TOKEN)
    assert shop_client.get("/api/lake").status_code == 401


def test_the_page_without_the_token_asks_for_it_and_has_no_facts(shop_client):
    del shop_client.headers["authorization"]
    for address in ("/", "/?token=wrong"):
        refused = shop_client.get(address)
        assert refused.status_code == 401
        assert "orders" not in refused.text
    accepted = shop_client.get(f"/?token={TOKEN}")
    assert accepted.status_code == 200
    assert TOKEN not in accepted.text
    assert "set-cookie" not in accepted.headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        f"127.0.0.1.evil.example:{PORT}",
        f"localhost.evil.example:{PORT}",
        f"10.0.0.1:{PORT}",
        f"0.0.0.0:{PORT}",
        f"[::2]:{PORT}",
        "127.0.0.1:1",
        "127.0.0.1",
        f"user@127.0.0.1:{PORT}",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/", f"/?token={TOKEN}", "/api/lake", "/static/app.js"])
def test_a_foreign_host_is_refused(shop_client, host, path):
    answer = shop_client.get(path, headers={"host": host})
    assert answer.status_code == 403
    assert "host is not served" in answer.json()["error"]


@pytest.mark.parametrize("host", [HOST, f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"])
def test_names_of_loopback_are_served(shop_client, host):
    assert shop_client.get("/api/lake", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://127.0.0.1:{PORT + 1}"},
        {"origin": f"https://{HOST}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_pages_are_refused(shop_client, headers):
    answer = shop_client.post("/api/sql", json={"text": "SHOW TABLES"}, headers=headers)
    assert answer.status_code == 403
    assert "other pages" in answer.json()["error"]


def test_requests_of_the_page_itself_are_answered(shop_client):
    own = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    assert shop_client.get("/api/lake", headers=own).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", f"/?token={TOKEN}", "/static/app.js", "/api/lake", "/api/table?table=no", "/none"]
)
def test_every_answer_has_the_headers_that_keep_scripts_out(shop_client, path):
    headers = shop_client.get(path).headers
    policy = dict(
        part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


def test_a_refusal_has_them_too(shop_client):
    answer = shop_client.get("/", headers={"host": "evil.example"})
    assert answer.headers["x-frame-options"] == "DENY"


def test_a_script_in_a_table_name_or_in_data_is_text(client, catalog):
    orders(catalog, "shop", SCRIPT)
    for path in ("/api/lake", "/api/tables"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert SCRIPT in answer.text
    facts = client.get("/api/table", params={"table": f"shop.{SCRIPT}"})
    assert facts.json()["table"] == f"shop.{SCRIPT}"
    missing = client.get("/api/table", params={"table": f"shop.{SCRIPT}2"})
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/json"


def test_the_page_makes_no_element_from_text():
    """With the trusted types that its policy demands, a browser would refuse it as well."""
    static = Path(read_only.__code__.co_filename).parent / "static"
    code = "\n".join(script.read_text() for script in static.glob("*.js"))
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", code
    )
    page = (static / "index.html").read_text()
    assert not re.findall(r"<script(?! type=\"module\" src)|<style|\son\w+=|style=", page)
    assert not re.findall(
        r"https?://(?!www\.w3\.org)", code + page + (static / "style.css").read_text()
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_facts_are_only_read(shop_client, method):
    assert shop_client.request(method, "/api/lake").status_code == 405


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"]
)
def test_no_other_file_is_served(shop_client, path):
    answer = shop_client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text
    assert "import" not in answer.text


# -------------------------------------------------------------------------------------------------
# The SQL box

REFUSED = [
    ("DROP TABLE shop.orders", "DROP TABLE is refused"),
    ("DROP TABLE IF EXISTS shop.orders PURGE", "DROP TABLE is refused"),
    ("CREATE TABLE shop.t (id INT)", "CREATE TABLE is refused"),
    ("CREATE TABLE shop.t AS SELECT 1 AS a", "CREATE TABLE is refused"),
    ("ALTER TABLE shop.orders RENAME TO shop.t", "ALTER TABLE is refused"),
    ("CREATE INDEX i ON shop.orders USING btree (id)", "is refused"),
    ("INSERT INTO shop.orders VALUES (1, 'us')", "put EXPLAIN before"),
    ("UPDATE shop.orders SET id = 2", "put EXPLAIN before"),
    ("DELETE FROM shop.orders", "put EXPLAIN before"),
    (
        "MERGE INTO shop.orders t USING shop.orders s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "put EXPLAIN",
    ),
    ("WITH a AS (SELECT 1) DELETE FROM shop.orders", "put EXPLAIN before"),
    ("TRUNCATE TABLE shop.orders", "put EXPLAIN before"),
    ("OPTIMIZE shop.orders", "put EXPLAIN before"),
    ("SET spark.sql.runSQLOnFiles = true", "SET is not supported"),
    ("RESET", "RESET is not supported"),
    ("ADD JAR '/tmp/a.jar'", "ADD is not supported"),
    ("CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc/passwd')", "CREATE"),
    ("CREATE FUNCTION f AS 'a.B' USING JAR '/tmp/a.jar'", "CREATE"),
    ("CREATE FUNCTION f() RETURNS INT RETURN 1", "CREATE"),
    ("DECLARE VARIABLE v = 1", "DECLARE is not supported"),
    ("CALL system.rollback('a', 1)", "CALL is not supported"),
    ("CACHE TABLE shop.orders", "CACHE is not supported"),
    ("EXECUTE IMMEDIATE 'DROP TABLE shop.orders'", "EXECUTE is not supported"),
    ("BEGIN DROP TABLE shop.orders; END", "is not supported"),
    ("SELECT 1; DROP TABLE shop.orders", "one statement at a time"),
    ("SELECT 1; SELECT 2", "one statement at a time"),
    ("EXPLAIN DROP TABLE shop.orders", "EXPLAIN DROP is not supported"),
    ("EXPLAIN ANALYZE SELECT 1", "is not supported"),
    ("", "no statement"),
    ("SELECT reflect('java.lang.Runtime', 'getRuntime')", "reflect can run any code"),
    ("SELECT REFLECT /* /* */ */ ('a', 'b')", "REFLECT can run any code"),
    ("SELECT `reflect`('a', 'b')", "reflect can run any code"),
    ("SELECT system.builtin.reflect('a', 'b')", "reflect can run any code"),
    ("SELECT java_method('a', 'b')", "java_method can run any code"),
    ("SELECT try_reflect('a', 'b')", "try_reflect can run any code"),
    ("EXPLAIN DELETE FROM shop.orders WHERE reflect('a', 'b') = 'c'", "reflect can run any code"),
    ("SELECT 'it\\'s', java_method('a', 'b') AS c", "java_method can run any code"),
    ("SELECT from_protobuf(a, 'M', '/etc/passwd') FROM shop.orders", "from_protobuf can run any"),
    (
        "SELECT from_xml('<a/>', 'b INT', map('rowValidationXSDPath', 'http://127.0.0.1/a'))",
        "from_xml can run any code or read any file",
    ),
    ("SELECT schema_of_xml('<a/>', map('row' || 'ValidationXSDPath', '/etc/a'))", "schema_of_xml"),
    ("SELECT from_avro(data, '', map('avroSchemaUrl', '/etc/a')) FROM shop.orders", "from_avro"),
    ("SELECT IDENTIFIER('ref' || 'lect')('a', 'b')", "IDENTIFIER"),
    ("SELECT * FROM IDENTIFIER('parquet.`/etc/a`')", "IDENTIFIER"),
    ("SELECT identifier -- x\n ('reflec' || 't')", "IDENTIFIER"),
    ("SELECT TRANSFORM(id) USING 'cat /etc/passwd' AS (a) FROM shop.orders", "scripts are refused"),
    ('SELECT TRANSFORM(id) USING "sh" AS (a) FROM shop.orders', "scripts are refused"),
    ("FROM shop.orders MAP id USING 'sh' AS a", "scripts are refused"),
    ("MAP id USING r'sh' AS a FROM shop.orders", "scripts are refused"),
    ("FROM shop.orders REDUCE id USING 'sh' AS a", "scripts are refused"),
    ("SELECT ${env:HOME}", "variables"),
    ("INSERT OVERWRITE DIRECTORY '/tmp/a' USING csv SELECT 1", "Expected VALUES or SELECT"),
    ("FROM shop.orders INSERT OVERWRITE DIRECTORY '/tmp/a' SELECT *", "INSERT is not supported"),
    ("(FROM shop.orders INSERT OVERWRITE DIRECTORY '/tmp/a' SELECT *)", "INSERT is refused"),
    ("WITH a AS (SELECT 1) (FROM a INSERT INTO b SELECT 1)", "INSERT is refused"),
    ("SELECT * FROM parquet.`/etc/passwd`", "not a table of this lake"),
    ("SELECT * FROM csv.`/etc/passwd`", "not a table of this lake"),
    ("SELECT * FROM text.`file:///etc/passwd`", "not a table of this lake"),
    ("SELECT * FROM binaryFile.`/etc`", "not a table of this lake"),
    ("SELECT * FROM (SELECT * FROM json.`/etc/a`) t", "not a table of this lake"),
    ("SELECT (SELECT max(value) FROM text.`/etc/a`)", "not a table of this lake"),
    ("WITH a AS (SELECT * FROM text.`/etc/a`) SELECT * FROM a", "not a table of this lake"),
    ("TABLE text.`/etc/a`", "not a table of this lake"),
    ("SELECT * FROM shop.orders JOIN csv.`/etc/a` USING (id)", "not a table of this lake"),
    ("SELECT * FROM shop.orders, STREAM text.`/etc/a`", "not a table of this lake"),
    ("FROM shop.orders |> JOIN text.`/etc/a` ON true", "not a table of this lake"),
    ("FROM shop.orders |> UNION ALL (SELECT value FROM text.`/etc/a`)", "not a table of this lake"),
    ("SELECT * FROM avro.`http://127.0.0.1/a`", "not a table of this lake"),
    ("SELECT * FROM shop.other", "not a table of this lake"),
    ("SELECT * FROM global_temp.v", "not a table of this lake"),
    ("EXPLAIN SELECT * FROM parquet.`/etc/passwd`", "not a table of this lake"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_the_sql_box_refuses(shop, shop_client, text, message):
    catalog = shop.catalog
    before = catalog.load_table("shop.orders").metadata_location
    answer = shop_client.post("/api/sql", json={"text": text})
    assert answer.status_code in (400, 404)
    assert message in answer.json()["error"]
    assert catalog.load_table("shop.orders").metadata_location == before
    assert catalog.list_tables("shop") == [("shop", "orders")]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT transform(array(1, 2), x -> x + 1)",
        "SELECT * FROM a JOIN b USING (id)",
        "EXPLAIN MERGE INTO a USING b ON a.id = b.id WHEN MATCHED THEN DELETE",
        "EXPLAIN MERGE INTO a USING (SELECT 1 AS id) b ON a.id = b.id WHEN MATCHED THEN DELETE",
        "EXPLAIN DELETE FROM a WHERE id = 1",
        "EXPLAIN FORMATTED SELECT 1",
        "SELECT identifier FROM a",
        "VALUES (1), (2)",
        "DESCRIBE a",
        "SHOW TABLES IN shop",
        "SHOW INDEXES ON a",
        "WITH a AS (SELECT 1) SELECT * FROM a;",
    ],
)
def test_what_only_reads_is_accepted(text):
    assert read_only(text)


def test_a_word_that_may_be_a_script_is_refused_in_a_string_too():
    """Spark and the parser of the page may disagree about where a string ends."""
    with pytest.raises(StatementError, match="scripts are refused"):
        read_only("SELECT 'using'")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"text": 1}', b"SELECT 1", b'{"text": "' + b"x" * 300_000 + b'"}']
)
def test_a_body_that_is_no_statement_is_refused(shop_client, body):
    answer = shop_client.post("/api/sql", content=body)
    assert answer.status_code == 400
    assert re.search("not JSON|longer than", answer.json()["error"])


def test_facts_write_nothing(shop_client, shop_folder):

    def contents() -> dict[str, str]:
        files = (path for path in shop_folder.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = contents()
    for path in FACTS:
        assert shop_client.get(path).status_code == 200, path
    assert contents() == before
