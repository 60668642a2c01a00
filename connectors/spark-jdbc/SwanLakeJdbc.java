package swanlake.spark;

import java.sql.SQLException;
import java.sql.Types;
import java.util.Map;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.jdbc.JdbcDialect;
import org.apache.spark.sql.jdbc.JdbcDialects;
import org.apache.spark.sql.jdbc.JdbcType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MetadataBuilder;
import scala.Option;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Teaches Spark's JDBC source what the Arrow Flight SQL JDBC driver does not report: that a table
 * does not exist (its errors have no SQLState), and that integers are signed. Load it with
 * {@code spark.sql.extensions=swanlake.spark.SwanLakeJdbc}.
 */
public final class SwanLakeJdbc extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    JdbcDialects.registerDialect(new Dialect());
    return BoxedUnit.UNIT;
  }

  /** The dialect of all URLs of the driver. */
  public static final class Dialect extends JdbcDialect {
    private static final Map<Integer, DataType> READ =
        Map.of(
            Types.TINYINT, DataTypes.ByteType,
            Types.SMALLINT, DataTypes.ShortType,
            Types.INTEGER, DataTypes.IntegerType,
            Types.BIGINT, DataTypes.LongType);
    private static final Map<DataType, JdbcType> CREATED =
        Map.of(
            DataTypes.BooleanType, new JdbcType("BOOLEAN", Types.BOOLEAN),
            DataTypes.ByteType, new JdbcType("TINYINT", Types.TINYINT),
            DataTypes.ShortType, new JdbcType("SMALLINT", Types.SMALLINT),
            DataTypes.DoubleType, new JdbcType("DOUBLE", Types.DOUBLE),
            DataTypes.StringType, new JdbcType("VARCHAR", Types.VARCHAR),
            DataTypes.TimestampType, new JdbcType("TIMESTAMPTZ", Types.TIMESTAMP));

    @Override
    public boolean canHandle(String url) {
      return url.startsWith("jdbc:arrow-flight");
    }

    @Override
    public Option<DataType> getCatalystType(
        int sqlType, String typeName, int size, MetadataBuilder metadata) {
      return Option.apply(READ.get(sqlType));
    }

    @Override
    public Option<JdbcType> getJDBCType(DataType type) {
      return Option.apply(CREATED.get(type));
    }

    @Override
    public boolean isObjectNotFoundException(SQLException error) {
      for (Throwable cause = error; cause != null; cause = cause.getCause()) {
        if (String.valueOf(cause.getMessage()).contains("CATALOG_ERROR: ")) {
          return true;
        }
      }
      return false;
    }
  }
}
