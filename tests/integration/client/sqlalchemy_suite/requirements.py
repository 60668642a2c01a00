"""What SwanLake supports of the features that SQLAlchemy's suite tests."""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

#: DuckDB and DuckLake have these, which the suite takes for rare.
SUPPORTED = """
    aggregate_order_by array_type autocommit boolean_col_expressions comment_reflection
    comment_reflection_full_unicode create_or_replace_view create_table_as create_temp_table_as ctes
    ctes_with_values date_historic datetime_historic datetime_interval datetime_literals
    datetime_timezone delete_from except_ expression_server_defaults
    float_or_double_precision_behaves_generically get_isolation_level_values has_temp_table
    implicit_default_schema infinity_floats intersect isolation_level json_type
    mod_operator_as_percent_sign nullsordering order_by_label_with_expression percent_schema_names
    precision_numerics_enotation_small precision_numerics_retains_significant_digits
    reflect_table_options regexp_match
    regexp_replace schema_create_delete server_defaults supports_bitwise_and supports_bitwise_not
    supports_bitwise_or supports_bitwise_shift supports_bitwise_xor supports_distinct_on
    table_ddl_if_exists table_value_constructor temp_table_names temporary_views
    timestamp_microseconds tuple_in unicode_ddl update_from uuid_data_type views window_functions
    window_range window_range_non_numeric window_range_numeric
""".split()
#: DuckLake has no key, index, identity or sequence, and its text has no length.
UNSUPPORTED = """
    autoincrement_insert autoincrement_without_sequence duplicate_key_raises_integrity_error
    foreign_key_constraint_reflection foreign_keys implements_get_lastrowid
    index_reflection indexes_with_ascdesc primary_key_constraint_reflection
    reflect_indexes_with_ascdesc self_referential_foreign_keys temp_table_reflect_indexes
    unique_constraint_reflection
""".split()

#: Tests and why they fail, by name; with parameters, by its beginning.
EXPECTED_FAILURES = {
    "ComponentReflectionTest.test_reflect_table_temp_table": "DuckDB stores no length",
    "ComponentReflectionTestExtra.test_string_length_reflection": "DuckLake stores no length",
    "ComponentReflectionTestExtra.test_server_defaults[Boolean": "a constant is reflected as text",
    # The suite's tables have a default in Python, which the statement evaluates.
    "InsertBehaviorTest.test_insert_from_select_autoinc": "rows of a SELECT get one key",
    "InsertBehaviorTest.test_insert_from_select_autoinc_no_rows": "the unused key is reported",
    "IsolationLevelTest.test_dialect_user_setting_is_restored": "there is one isolation level",
    "LongNameBlowoutTest.test_long_convention_name[ix": "there are no indexes",
    "ServerSideCursorsTest.test_conn_option": "every cursor streams",
    **{
        f"ServerSideCursorsTest.test_ss_cursor_status[{case}]": "every cursor streams"
        for case in (
            *("for_update_expr", "for_update_string", "global_expr", "global_string"),
            *("global_text", "stmt_option", "text_ss_option"),
        )
    },
    "WindowFunctionTest.test_window_range": "rows have no order without ORDER BY",
    "WindowFunctionTest.test_window_range_numeric": "rows have no order without ORDER BY",
}


class Requirements(SuiteRequirements):
    """The suite's defaults, except for the features listed above."""

    def get_isolation_levels(self, config: Any) -> dict[str, Any]:
        return {"default": "SNAPSHOT", "supported": ["SNAPSHOT", "AUTOCOMMIT"]}


for _feature in SUPPORTED:
    setattr(Requirements, _feature, property(lambda self: exclusions.open()))  # type: ignore[no-untyped-call]
for _feature in UNSUPPORTED:
    setattr(Requirements, _feature, property(lambda self: exclusions.closed()))  # type: ignore[no-untyped-call]
