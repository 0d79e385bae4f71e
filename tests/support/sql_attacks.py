"""What the text of a query tries to reach beyond its tables: one table for all that takes SQL.

Owns the statements. Paths are those of a directory that the test hands in.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ALLOWED", "EXPRESSIONS", "STATEMENTS", "laid_out"]

STATEMENTS = (
    # files, read
    "select * from read_csv('{0}/in.csv')",
    "from '{0}/in.csv'",
    "select * from read_text('{0}/in.csv')",
    "select * from read_blob('{0}/in.csv')",
    "select * from read_json('{0}/in.csv')",
    "select * from read_parquet('{0}/in.parquet')",
    "select * from parquet_metadata('{0}/in.parquet')",
    "select * from glob('{0}/*')",
    "select * from sniff_csv('{0}/in.csv')",
    "select * from query('from read_text(''{0}/in.csv'')')",
    "select * from query_table('{0}/in.csv')",
    "create table t(x int, y int); copy t from '{0}/in.csv'",
    "create view v as from '{0}/in.csv'",
    "create macro m() as table from read_csv('{0}/in.csv'); from m()",
    "prepare p as from read_csv('{0}/in.csv'); execute p",
    "import database '{0}'",
    "pragma import_database('{0}')",
    # files, written
    "copy (select 1) to '{0}/out.csv'",
    "copy (select 1) to '{0}/out.parquet'",
    "copy (select 1) to '/dev/stderr'",
    "attach '{0}/out.db' as other",
    "attach if not exists '{0}/out.db'",
    "attach ':memory:' as other; copy from database memory to other; attach '{0}/out.db'",
    "export database '{0}/out'",
    "set temp_directory='{0}/out'",
    "set log_query_path='{0}/out'",
    "set profile_output='{0}/out'",
    "pragma profiling_output='{0}/out'",
    "pragma enable_profiling='json'",
    "call enable_logging('QueryLog', storage='file', storage_config={{'path': '{0}/out'}})",
    "from enable_logging('QueryLog', storage='file', storage_config={{'path': '{0}/out'}})",
    "set extension_directory='{0}/out'",
    "set home_directory='{0}/out'",
    "set secret_directory='{0}/out'",
    # the network
    "select * from read_parquet('http://127.0.0.1:1/x.parquet')",
    "select * from read_csv('https://127.0.0.1:1/x.csv')",
    "from 's3://bucket/x.parquet'",
    "attach 'md:x'",
    "attach 'postgres:host=127.0.0.1 port=1' as p (type postgres)",
    # extensions
    "install httpfs",
    "install x from 'http://127.0.0.1:1'",
    "load httpfs",
    "load '{0}/x.duckdb_extension'",
    "force install json",
    "update extensions",
    "from duckdb_extensions()",
    "select * from sqlite_scan('{0}/in.db', 't')",
    "set custom_extension_repository='http://127.0.0.1:1'",
    "set autoinstall_known_extensions=true",
    "set autoload_known_extensions=true",
    "set allow_unsigned_extensions=true",
    "set allow_community_extensions=true",
    # secrets and the environment
    "create secret s (type s3, key_id 'a', secret 'b')",
    "create persistent secret s (type http)",
    "from duckdb_secrets()",
    "select getenv('HOME')",
    # the way back out
    "set enable_external_access=true",
    "reset enable_external_access",
    "set lock_configuration=false",
    "reset lock_configuration",
    "set allowed_directories=['{0}']",
    "set allowed_paths=['{0}/in.csv']",
    "set allowed_configs=['enable_external_access']",
    "set file_search_path='{0}'",
    "set enable_logging=true",
    "set http_proxy='http://127.0.0.1:1'",
    "set python_enable_replacements=true",
    "set python_scan_all_frames=true",
    # bounds
    "set memory_limit='1TB'",
    "set threads=4096",
    "set max_expression_depth=100000000",
)

EXPRESSIONS = (
    "(select count(*) from read_text('{0}/in.csv')) > 0",
    "(select count(*) from '{0}/in.csv') > 0",
    "(select count(*) from glob('{0}/*')) > 0",
    "exists (from read_parquet('http://127.0.0.1:1/x.parquet'))",
    "(select count(*) from enable_logging('QueryLog', storage='file',"
    " storage_config={{'path': '{0}/out'}})) >= 0",
    "(select count(*) from duckdb_secrets()) >= 0",
    "(select count(*) from duckdb_extensions()) >= 0",
    "getenv('HOME') is not null",
    "(select count(*) from batch) > 0",  # a Python variable of the code that asks DuckDB
    "true) as chosen; copy (select 1) to '{0}/out.csv'; select (true",
)

ALLOWED = (
    "set timezone='Europe/Paris'; select 1",
    "set default_null_order='nulls_first'; select 1",
    "create table t as select 1 as x; insert into t values (2); select sum(x) from t",
    "attach ':memory:' as other; select 1",
    "set variable x = 1; select getvariable('x')",
    "select json_extract('{\"a\": 1}', '$.a')",
    "select now() at time zone 'Europe/Paris'",
)


def laid_out(directory: Path) -> set[str]:
    """Make the files that the statements name; the names that may be there afterwards."""
    (directory / "in.csv").write_text("x,y\n1,2\n")
    (directory / "in.parquet").write_bytes(b"PAR1")
    (directory / "schema.sql").write_text("create table stolen(x int);")
    (directory / "load.sql").write_text("")
    return {path.name for path in directory.iterdir()}
