// Uses the Go ADBC driver as an application would; the test compares what it prints.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"

	"github.com/apache/arrow-adbc/go/adbc"
	"github.com/apache/arrow-adbc/go/adbc/driver/flightsql"
	"github.com/apache/arrow-adbc/go/adbc/sqldriver"
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

const endless = "SELECT count(*) FROM range(1_000_000_000_000) r(x) WHERE x % 7 = 3"

var background = context.Background()

func main() {
	scenarios := map[string]func(adbc.Connection){
		"browse":     browse,
		"query":      query,
		"parameters": parameters,
		"ingest":     ingest,
		"cancel":     cancel,
		"timeout":    timeout,
	}
	uri := os.Args[2]
	if os.Args[1] == "standard" {
		standard(uri)
		return
	}
	driver := flightsql.NewDriver(memory.DefaultAllocator)
	database := must(driver.NewDatabase(map[string]string{adbc.OptionKeyURI: uri}))
	defer database.Close()
	connection := must(database.Open(background))
	defer connection.Close()
	scenarios[os.Args[1]](connection)
}

func browse(connection adbc.Connection) {
	run(connection, "CREATE SCHEMA go_browsed")
	run(connection, "CREATE TABLE go_browsed.items (id BIGINT NOT NULL, price DECIMAL(12,3))")
	catalog, schema, table := "swanlake", "go_browsed", "items"
	objects := must(connection.GetObjects(
		background, adbc.ObjectDepthColumns, &catalog, &schema, &table, nil, nil))
	defer objects.Release()
	for objects.Next() {
		text := string(must(objects.RecordBatch().MarshalJSON()))
		for _, name := range []string{"swanlake", "go_browsed", "items", "id", "price"} {
			fmt.Println(name, strings.Contains(text, fmt.Sprintf("%q", name)))
		}
	}
	columns := must(connection.GetTableSchema(background, &catalog, &schema, table))
	for _, field := range columns.Fields() {
		fmt.Println(field.Name, field.Type)
	}
}

func query(connection adbc.Connection) {
	printRows(connection, `SELECT 1::DECIMAL(12,3) AS d, 2::BIGINT AS b, 'x' AS v, true AS t,
		'2024-02-29 12:30:00.123456+00'::TIMESTAMPTZ AS z, 18446744073709551615::UBIGINT AS u,
		[1, 2] AS l, {'a': 1} AS s, NULL::INTEGER AS n`)
}

// types are the columns of a table, and a literal for each.
var types = [][2]string{
	{"BOOLEAN", "true"}, {"TINYINT", "-5"}, {"SMALLINT", "300"}, {"INTEGER", "70000"},
	{"BIGINT", "5000000000"}, {"UBIGINT", "18446744073709551615"}, {"FLOAT", "1.5"},
	{"DOUBLE", "2.25"}, {"DECIMAL(12,3)", "123.456"}, {"VARCHAR", "'Zoë'"},
	{"BLOB", `'\x00\xFF'`}, {"DATE", "'2024-02-29'"}, {"TIME", "'12:30:15.123456'"},
	{"TIMESTAMP", "'2024-02-29 12:30:15.123456'"},
	{"TIMESTAMPTZ", "'2024-02-29 12:30:15.123456+00'"},
	{"UUID", "'00000000-0000-0000-0000-000000000001'"}, {"INTERVAL", "'3 days'"},
	{"INTEGER[]", "[1, 2]"}, {"STRUCT(a INTEGER)", "{'a': 1}"},
}

// parameters reads a row of every type, binds it to an INSERT, and compares both rows.
func parameters(connection adbc.Connection) {
	var columns, values, marks []string
	for i, kind := range types {
		columns = append(columns, fmt.Sprintf("c%d %s", i, kind[0]))
		values = append(values, fmt.Sprintf("%s::%s AS c%d", kind[1], kind[0], i))
		marks = append(marks, "?")
	}
	run(connection, "CREATE TABLE go_parameters ("+strings.Join(columns, ", ")+")")
	reader, statement := rows(connection, "SELECT "+strings.Join(values, ", "))
	defer statement.Close()
	defer reader.Release()
	reader.Next()
	insert := must(connection.NewStatement())
	defer insert.Close()
	check(insert.SetSqlQuery("INSERT INTO go_parameters VALUES (" + strings.Join(marks, ", ") + ")"))
	check(insert.Prepare(background))
	check(insert.Bind(background, reader.RecordBatch()))
	fmt.Println("inserted", must(insert.ExecuteUpdate(background)))
	printRows(connection, "FROM go_parameters")
	printRows(connection, "SELECT count(*) AS equal FROM go_parameters JOIN (SELECT "+
		strings.Join(values, ", ")+") AS expected USING (c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, "+
		"c10, c11, c12, c13, c14, c15, c16, c17, c18)")
}

func ingest(connection adbc.Connection) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int64}}, nil)
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer builder.Release()
	for i := range int64(100_000) {
		builder.Field(0).(*array.Int64Builder).Append(i)
	}
	batch := builder.NewRecordBatch()
	defer batch.Release()
	for _, mode := range []string{adbc.OptionValueIngestModeCreate, adbc.OptionValueIngestModeAppend} {
		statement := must(connection.NewStatement())
		check(statement.SetOption(adbc.OptionKeyIngestTargetTable, "go_ingest"))
		check(statement.SetOption(adbc.OptionKeyIngestMode, mode))
		check(statement.Bind(background, batch))
		fmt.Println("ingested", must(statement.ExecuteUpdate(background)))
		check(statement.Close())
	}
	printRows(connection, "SELECT count(*) AS n, sum(i)::BIGINT AS s FROM go_ingest")
}

// cancel ends the context of a query when a line is entered.
func cancel(connection adbc.Connection) {
	running, stop := context.WithCancel(background)
	ended := make(chan error)
	go func() { ended <- read(running, connection, endless, nil) }()
	fmt.Println("running")
	_, _ = fmt.Scanln()
	stop()
	fmt.Println("cancelled", status(<-ended))
	printRows(connection, "SELECT 'yes' AS usable")
}

func timeout(connection adbc.Connection) {
	options := map[string]string{
		"adbc.flight.sql.rpc.timeout_seconds.query": "1",
		"adbc.flight.sql.rpc.timeout_seconds.fetch": "1",
	}
	fmt.Println("timed out", status(read(background, connection, endless, options)))
	printRows(connection, "SELECT 'yes' AS usable")
}

// standard uses database/sql, which prepares statements with parameters.
func standard(uri string) {
	sql.Register("flightsql", sqldriver.Driver{Driver: flightsql.NewDriver(memory.DefaultAllocator)})
	database := must(sql.Open("flightsql", "uri="+uri))
	defer database.Close()
	database.SetMaxOpenConns(1) // so that all statements have the same session
	must(database.Exec("CREATE TEMP TABLE standard (i BIGINT, s VARCHAR)"))
	insert := must(database.Prepare("INSERT INTO standard VALUES (?, ?)"))
	must(insert.Exec(int64(1), "one"))
	check(insert.Close())
	query := must(database.Prepare("SELECT s FROM standard WHERE i = ?"))
	defer query.Close()
	var s string
	check(query.QueryRow(int64(1)).Scan(&s))
	fmt.Println(s)
}

func read(
	ctx context.Context, connection adbc.Connection, sql string, options map[string]string,
) error {
	statement := must(connection.NewStatement())
	defer statement.Close()
	for name, value := range options {
		check(statement.SetOption(name, value))
	}
	check(statement.SetSqlQuery(sql))
	reader, _, err := statement.ExecuteQuery(ctx)
	if err != nil {
		return err
	}
	defer reader.Release()
	for reader.Next() {
	}
	return reader.Err()
}

func status(err error) string {
	if failed, ok := err.(adbc.Error); ok {
		return failed.Code.String()
	}
	return fmt.Sprint(err)
}

func run(connection adbc.Connection, sql string) {
	statement := must(connection.NewStatement())
	defer statement.Close()
	check(statement.SetSqlQuery(sql))
	must(statement.ExecuteUpdate(background))
}

func rows(connection adbc.Connection, sql string) (array.RecordReader, adbc.Statement) {
	statement := must(connection.NewStatement())
	check(statement.SetSqlQuery(sql))
	reader, _, err := statement.ExecuteQuery(background)
	check(err)
	return reader, statement
}

func printRows(connection adbc.Connection, sql string) {
	reader, statement := rows(connection, sql)
	defer statement.Close()
	defer reader.Release()
	for reader.Next() {
		fmt.Println(strings.ReplaceAll(string(must(reader.RecordBatch().MarshalJSON())), "\n", ""))
	}
	check(reader.Err())
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
