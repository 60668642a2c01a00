import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Time;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.stream.Collectors;

/** Uses the JDBC driver as an application would; the test compares what it prints. */
public final class JdbcProgram {
  private static final String ENDLESS =
      "SELECT count(*) FROM range(1_000_000_000_000) r(x) WHERE x % 7 = 3";

  private final Connection connection;

  private JdbcProgram(Connection connection) {
    this.connection = connection;
  }

  public static void main(String[] arguments) throws Exception {
    try (Connection connection = DriverManager.getConnection(arguments[1])) {
      JdbcProgram.class.getDeclaredMethod(arguments[0]).invoke(new JdbcProgram(connection));
    }
  }

  void browse() throws SQLException {
    run("CREATE SCHEMA browsed");
    run(
        "CREATE TABLE browsed.items (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(12,3),"
            + " moment TIMESTAMPTZ)");
    run("CREATE TEMP TABLE keyed (a INTEGER, b INTEGER, PRIMARY KEY (a, b))");
    DatabaseMetaData metadata = connection.getMetaData();
    print("product", metadata.getDatabaseProductName());
    print("catalogs", column(metadata.getCatalogs(), "TABLE_CAT").contains("swanlake"));
    print("schemas", column(metadata.getSchemas("swanlake", "brow%"), "TABLE_SCHEM"));
    print("table types", column(metadata.getTableTypes(), "TABLE_TYPE"));
    print("tables", column(metadata.getTables(null, "browsed", "%", null), "TABLE_NAME"));
    print("primary key", column(metadata.getPrimaryKeys(null, null, "keyed"), "COLUMN_NAME"));
    print("types", column(metadata.getTypeInfo(), "TYPE_NAME"));
    try (ResultSet columns = metadata.getColumns(null, "browsed", "items", "%")) {
      while (columns.next()) {
        print(
            columns.getString("COLUMN_NAME"),
            columns.getString("TYPE_NAME"),
            columns.getObject("COLUMN_SIZE"),
            columns.getObject("DECIMAL_DIGITS"),
            columns.getString("IS_NULLABLE"),
            columns.getString("IS_AUTOINCREMENT"));
      }
    }
  }

  void query() throws SQLException {
    try (Statement statement = connection.createStatement();
        ResultSet rows =
            statement.executeQuery(
                "SELECT 1::DECIMAL(12,3) AS d, 2::BIGINT AS b, 'x' AS v,"
                    + " '2024-02-29 12:30:00.123456+00'::TIMESTAMPTZ AS z, 255::UTINYINT AS u1,"
                    + " 65535::USMALLINT AS u2, 4294967295::UINTEGER AS u4,"
                    + " 18446744073709551615::UBIGINT AS u8, 12::HUGEINT AS h,"
                    + " uuid '00000000-0000-0000-0000-000000000001' AS u, [1, 2] AS l,"
                    + " {'a': 1} AS s, INTERVAL 3 DAY AS i, NULL::INTEGER AS n")) {
      ResultSetMetaData columns = rows.getMetaData();
      rows.next();
      for (int i = 1; i <= columns.getColumnCount(); i++) {
        print(
            columns.getColumnName(i),
            columns.getColumnTypeName(i),
            columns.getPrecision(i),
            columns.getScale(i),
            rows.getObject(i));
      }
      print("instant", rows.getObject("z", Instant.class));
    }
  }

  void parameters() throws SQLException {
    run(
        "CREATE TABLE jdbc_parameters (bo BOOLEAN, ti TINYINT, si SMALLINT, i INTEGER, b BIGINT,"
            + " h HUGEINT, f FLOAT, d DOUBLE, de DECIMAL(12,3), v VARCHAR, bl BLOB, da DATE,"
            + " tm TIME, ts TIMESTAMP, tz TIMESTAMPTZ, u UUID, iv INTERVAL, ub UBIGINT,"
            + " st STRUCT(a INTEGER), li INTEGER[])");
    String marks = String.join(", ", Collections.nCopies(20, "?"));
    try (PreparedStatement insert =
        connection.prepareStatement("INSERT INTO jdbc_parameters VALUES (" + marks + ")")) {
      insert.setBoolean(1, true);
      insert.setByte(2, (byte) -5);
      insert.setShort(3, (short) 300);
      insert.setInt(4, 70000);
      insert.setLong(5, 5000000000L);
      insert.setBigDecimal(6, new BigDecimal("1180591620717411303424"));
      insert.setFloat(7, 1.5f);
      insert.setDouble(8, 2.25);
      insert.setBigDecimal(9, new BigDecimal("123.456"));
      insert.setString(10, "Zoë");
      insert.setBytes(11, new byte[] {0, (byte) 255});
      insert.setDate(12, Date.valueOf("2024-02-29"));
      insert.setTime(13, Time.valueOf("12:30:15"));
      insert.setTimestamp(14, Timestamp.valueOf("2024-02-29 12:30:15.123"));
      insert.setTimestamp(15, Timestamp.valueOf("2024-02-29 12:30:15.123"));
      insert.setString(16, "00000000-0000-0000-0000-000000000001");
      insert.setString(17, "3 days");
      insert.setLong(18, 7);
      insert.setString(19, "{'a': 1}");
      insert.setArray(20, connection.createArrayOf("INTEGER", new Object[] {1, 2}));
      print("inserted", insert.executeUpdate());
      for (int i = 1; i <= 20; i++) {
        insert.setNull(i, Types.NULL);
      }
      print("inserted", insert.executeUpdate());
    }
    try (PreparedStatement select =
        connection.prepareStatement(
            "SELECT bo, ti, si, i, b, h, f, d, de, v, bl, da, tm, ts, tz, u, iv, ub, st, li"
                + " FROM jdbc_parameters WHERE ts = ? AND da = ? AND de = ? AND i > ?")) {
      select.setTimestamp(1, Timestamp.valueOf("2024-02-29 12:30:15.123"));
      select.setDate(2, Date.valueOf("2024-02-29"));
      select.setBigDecimal(3, new BigDecimal("123.456"));
      select.setInt(4, 1);
      try (ResultSet rows = select.executeQuery()) {
        printAll(rows);
      }
    }
  }

  void batch() throws SQLException {
    run("CREATE TABLE jdbc_batch (i INTEGER, moment TIMESTAMP)");
    try (PreparedStatement insert =
        connection.prepareStatement("INSERT INTO jdbc_batch VALUES (?, ?)")) {
      for (int i = 0; i < 1000; i++) {
        insert.setInt(1, i);
        insert.setTimestamp(2, new Timestamp(1700000000000L + i));
        insert.addBatch();
      }
      print("counts", Arrays.toString(insert.executeBatch()));
    }
    try (PreparedStatement update =
        connection.prepareStatement("UPDATE jdbc_batch SET moment = ? WHERE i = ?")) {
      for (int i = 0; i < 2; i++) {
        update.setTimestamp(1, new Timestamp(0));
        update.setInt(2, i);
        update.addBatch();
      }
      print("counts", Arrays.toString(update.executeBatch()));
    }
    printRows("SELECT count(*), max(moment)::VARCHAR, count(*) FILTER (moment = 'epoch') FROM jdbc_batch");
  }

  void transactions() throws SQLException {
    run("CREATE TABLE jdbc_transactions (i INTEGER)");
    run("BEGIN");
    run("INSERT INTO jdbc_transactions VALUES (1)");
    run("ROLLBACK");
    printRows("SELECT count(*) FROM jdbc_transactions");
    run("BEGIN");
    run("INSERT INTO jdbc_transactions VALUES (2)");
    run("COMMIT");
    printRows("SELECT count(*) FROM jdbc_transactions");
    connection.setAutoCommit(false);
    run("INSERT INTO jdbc_transactions VALUES (3)");
    connection.rollback();
    printRows("SELECT count(*) FROM jdbc_transactions");
  }

  void statements() throws SQLException {
    run("CREATE TABLE jdbc_statements (i INTEGER)");
    try (Statement statement = connection.createStatement()) {
      print("update", statement.executeUpdate("INSERT INTO jdbc_statements VALUES (1), (2)"));
      print("has rows", statement.execute("SELECT 1"));
      print("has rows", statement.execute("DELETE FROM jdbc_statements WHERE i = 1"));
      print("count", statement.getUpdateCount());
    }
    printRows("INSERT INTO jdbc_statements VALUES (3) RETURNING i");
    printRows("DESCRIBE jdbc_statements");
    try {
      run("SELECT * FROM no_such_table");
    } catch (SQLException error) {
      print("error", error.getSQLState(), error.getMessage().lines().findFirst().get());
    }
  }

  void cancel() throws Exception {
    try (Statement statement = connection.createStatement()) {
      FutureTask<String> outcome = new FutureTask<>(() -> outcome(statement, ENDLESS));
      Thread reader = new Thread(outcome);
      reader.start();
      // Before it waits for rows, the driver would ignore the cancellation.
      while (Arrays.stream(reader.getStackTrace()).noneMatch(JdbcProgram::waitsForRows)) {
        Thread.onSpinWait();
      }
      statement.cancel();
      print("cancelled", outcome.get());
    }
    printRows("SELECT 'usable'");
  }

  private static boolean waitsForRows(StackTraceElement frame) {
    return frame.getClassName().endsWith("FlightEndpointDataQueue")
        && frame.getMethodName().equals("next");
  }

  void timeout() throws Exception {
    try (Statement statement = connection.createStatement()) {
      statement.setQueryTimeout(1);
      print("timed out", outcome(statement, ENDLESS));
    }
    printRows("SELECT 'usable'");
  }

  private static String outcome(Statement statement, String sql) {
    try (ResultSet rows = statement.executeQuery(sql)) {
      rows.next();
      return "a row";
    } catch (SQLException error) {
      return error.getMessage();
    }
  }

  private void run(String sql) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      statement.execute(sql);
    }
  }

  private void printRows(String sql) throws SQLException {
    try (Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery(sql)) {
      printAll(rows);
    }
  }

  private static void printAll(ResultSet rows) throws SQLException {
    while (rows.next()) {
      Object[] values = new Object[rows.getMetaData().getColumnCount()];
      for (int i = 0; i < values.length; i++) {
        values[i] = rows.getObject(i + 1);
      }
      print(values);
    }
  }

  private static List<String> column(ResultSet rows, String name) throws SQLException {
    List<String> values = new ArrayList<>();
    try (rows) {
      while (rows.next()) {
        values.add(rows.getString(name));
      }
    }
    return values;
  }

  private static void print(Object... values) {
    System.out.println(
        Arrays.stream(values).map(JdbcProgram::text).collect(Collectors.joining(" | ")));
  }

  private static String text(Object value) {
    return value instanceof byte[] bytes ? HexFormat.of().formatHex(bytes) : String.valueOf(value);
  }
}
