// Rule of Spark's optimizer: passes conditions, columns, limits and aggregates above a read to Python,
// and puts the plan that Python returns in place of the read.
//
// Rules of this file
// ------------------
// 1. The text is compiled at run time by Janino, which has no lambdas and no generics of its own, on every
//    Spark from 4.0: it uses only classes and methods that exist in all of them.
// 2. The rule decides nothing: Python plans, or declines. The filters stay in the plan, so a read that
//    returns more rows than requested is right.
// 3. The rule raises nothing but refusals: after any Throwable, the plan is as before, but for reads of views,
//    which are planned whole. A view that cannot be planned raises its own error. A refusal replaces an
//    error of Spark that names no remedy, or a table of the catalog that could never be read.
// 4. Columns are sent as `token` and position, never by name, because names may be words of SQL.
// 5. One object serves all sessions of a JVM, which share nothing but this: settings come from SQLConf.
package icechunk;

import java.lang.ref.ReferenceQueue;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.aggregate.*;
import org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.CreateTempViewUsing;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.Iterator;
import scala.collection.mutable.ListBuffer;

public class Pushdown extends Rule {
    private static final String KEY = "icechunk.read";
    private static final int MOST_KEYS = 5000;
    private String token;
    private Function planner;
    private String refusedTable;
    private String refusedChange;
    private String refusedSecret;
    private java.util.regex.Pattern secret;
    private final com.fasterxml.jackson.databind.ObjectMapper json = new com.fasterxml.jackson.databind.ObjectMapper();
    private final Map queries = new WeakHashMap();
    private long lastQuery = 0;
    private final Map watched = new ConcurrentHashMap();
    private final ReferenceQueue dropped = new ReferenceQueue();
    private volatile boolean warned = false;

    public Pushdown() {}

    public void connect(String token, Function planner, String refusedTable, String refusedChange,
            String refusedSecret, String secret) {
        this.token = token;
        this.planner = planner;
        this.refusedTable = refusedTable;
        this.refusedChange = refusedChange;
        this.refusedSecret = refusedSecret;
        this.secret = java.util.regex.Pattern.compile(secret);
    }

    // ---- reads that are still in use -------------------------------------------------------------

    public void watch(Object plan, String id) {
        PythonUDF udf = (PythonUDF) ((MapInArrow) plan).functionExpr();
        watched.put(new WeakReference(udf.func(), dropped), id);
    }

    public String forgotten() {
        StringBuilder ids = new StringBuilder();
        Object reference = dropped.poll();
        while (reference != null) {
            Object id = watched.remove(reference);
            if (id != null) ids.append(ids.length() > 0 ? " " : "").append(id);
            reference = dropped.poll();
        }
        return ids.toString();
    }

    // ---- the plan --------------------------------------------------------------------------------

    public TreeNode apply(TreeNode plan) {
        String refused = null;
        try {
            refused = refused((LogicalPlan) plan);
        } catch (Throwable failure) {
            warn(failure);
        }
        if (refused != null) throw new UnsupportedOperationException(refused);
        try {
            return rewritten((LogicalPlan) plan, new Need());
        } catch (Throwable failure) {
            warn(failure);
            return planned((LogicalPlan) plan);
        }
    }

    // Plan only the reads of views, which fail otherwise, and pass nothing to them.
    private LogicalPlan planned(LogicalPlan plan) {
        try {
            if (plan instanceof MapInArrow) {
                Metadata read = readOf((MapInArrow) plan);
                if (read != null) return pushed((MapInArrow) plan, read, new Need());
            }
            ListBuffer children = new ListBuffer();
            Iterator each = plan.children().iterator();
            while (each.hasNext()) children.addOne(planned((LogicalPlan) each.next()));
            return (LogicalPlan) plan.withNewChildren(children.toSeq());
        } catch (Throwable failure) {
            return plan;
        }
    }

    private static class Need {
        List conjuncts = new ArrayList();
        // Conditions that no Filter has, such as the keys of the other side of a join.
        List keys = new ArrayList();
        boolean complete = true;
        AttributeSet columns = null;
        long limit = -1;
    }

    private LogicalPlan rewritten(LogicalPlan plan, Need need) {
        if (plan instanceof MapInArrow) {
            Metadata read = readOf((MapInArrow) plan);
            if (read != null) return pushed((MapInArrow) plan, read, need);
        }
        if (plan instanceof Aggregate) {
            LogicalPlan whole = aggregated((Aggregate) plan);
            if (whole != null) return whole;
        }
        Need below = new Need();
        if (plan instanceof Filter) {
            // The lower condition is evaluated first.
            split(((Filter) plan).condition(), below.conjuncts);
            below.conjuncts.addAll(need.conjuncts);
            below.complete = need.complete;
            below.columns = need.columns == null ? null : need.columns.$plus$plus(plan.references());
            below.limit = need.limit;
            if (isDeterministic(plan)) below.keys = need.keys;
        } else if (plan instanceof Project) {
            below.columns = plan.references();
            if (isDeterministic(plan)) {
                List projects = new ArrayList();
                projects.add(plan);
                for (int i = 0; i < need.keys.size(); i++) below.keys.add(inlined((Expression) need.keys.get(i), projects, 0));
            }
            // A condition above may be on a column of the project, as of random numbers.
            below.limit = need.conjuncts.isEmpty() ? need.limit : -1;
        } else if (plan instanceof Aggregate) {
            below.columns = plan.references();
        } else if (plan instanceof LocalLimit) {
            Expression limit = ((LocalLimit) plan).limitExpr();
            if (limit instanceof Literal && limit.dataType() instanceof IntegerType) {
                long rows = ((Integer) ((Literal) limit).value()).longValue();
                below.limit = need.limit < 0 ? rows : Math.min(rows, need.limit);
            }
            below.columns = need.columns;
        } else if (plan instanceof GlobalLimit) {
            below.columns = need.columns;
        }
        ListBuffer children = new ListBuffer();
        boolean changed = false;
        Iterator each = plan.children().iterator();
        while (each.hasNext()) {
            LogicalPlan child = (LogicalPlan) each.next();
            LogicalPlan other = rewritten(child, plan instanceof Join ? ofSide((Join) plan, child, need) : below);
            changed = changed || other != child;
            children.addOne(other);
        }
        return changed ? (LogicalPlan) plan.withNewChildren(children.toSeq()) : plan;
    }

    private LogicalPlan pushed(MapInArrow node, Metadata read, Need need) {
        boolean isFresh = read.contains(KEY + ".fresh");
        List positions = new ArrayList();
        ListBuffer kept = new ListBuffer();
        Iterator each = node.output().iterator();
        for (int position = 0; each.hasNext(); position++) {
            Attribute column = (Attribute) each.next();
            if (need.columns == null || need.columns.contains(column)) {
                positions.add(new Integer(position));
                kept.addOne(column);
            }
        }
        boolean isWhole = positions.size() == node.output().size();
        List conjuncts = new ArrayList(need.conjuncts);
        conjuncts.addAll(need.keys);
        boolean isPushed = isOn() && !(conjuncts.isEmpty() && isWhole && need.limit < 0);
        if (!isPushed && !isFresh) return node;
        Map request = request("read", read);
        if (isPushed) {
            request.put("complete", Boolean.valueOf(texts(conjuncts, node.output(), request) && need.complete));
            request.put("columns", positions);
            request.put("limit", new Long(need.limit));
        }
        Object found = asked(request);
        if (found == null) return node;
        return under((LogicalPlan) found, isPushed ? kept.toSeq() : node.output(), node);
    }

    // Return the keys that rows of a side of a join must have to be in its result, or to decide it.
    private static Need ofSide(Join join, LogicalPlan side, Need need) {
        Need found = new Need();
        boolean isLeft = side == join.left();
        // The one join that has no words in SQL: of an EXISTS or IN below an OR.
        boolean isExistence = join.joinType() instanceof org.apache.spark.sql.catalyst.plans.ExistenceJoin;
        String type = isExistence ? "LEFT EXISTENCE" : join.joinType().sql();
        for (int i = 0; i < need.keys.size(); i++) {
            Expression one = (Expression) need.keys.get(i);
            boolean isKept = type.equals("INNER") || type.equals("CROSS") || (isLeft && type.startsWith("LEFT "))
                || (!isLeft && type.equals("RIGHT OUTER"));
            if (isKept && one.references().subsetOf(side.outputSet())) found.keys.add(one);
        }
        boolean isReduced = type.equals("INNER") || type.equals("LEFT SEMI")
            || type.equals(isLeft ? "RIGHT OUTER" : "LEFT OUTER") || (!isLeft && type.equals("LEFT ANTI"));
        LogicalPlan other = isLeft ? join.right() : join.left();
        LocalRelation rows = rowsOf(other);
        if (!isReduced || rows == null || join.condition().isEmpty() || !hasRead(side)) return found;
        List conjuncts = new ArrayList();
        split((Expression) join.condition().get(), conjuncts);
        for (int i = 0; i < conjuncts.size(); i++) {
            if (!(conjuncts.get(i) instanceof EqualTo)) continue;
            EqualTo equal = (EqualTo) conjuncts.get(i);
            addKeys(equal.left(), side, equal.right(), other, rows, found.keys);
            addKeys(equal.right(), side, equal.left(), other, rows, found.keys);
        }
        return found;
    }

    private static void addKeys(
        Expression own, LogicalPlan side, Expression key, LogicalPlan other, LocalRelation rows, List found) {
        if (own.references().isEmpty() || !own.references().subsetOf(side.outputSet())) return;
        // Columns that the plan above the rows computes are not among theirs.
        if (!key.references().subsetOf(other.outputSet()) || !key.references().subsetOf(rows.outputSet())) return;
        if (!own.deterministic() || !key.deterministic() || !own.dataType().equals(key.dataType())) return;
        java.util.Set values = new java.util.LinkedHashSet();
        Iterator each = rows.data().iterator();
        while (each.hasNext()) {
            org.apache.spark.sql.catalyst.InternalRow row = (org.apache.spark.sql.catalyst.InternalRow) each.next();
            Map known = new HashMap();
            Iterator columns = rows.output().iterator();
            for (int i = 0; columns.hasNext(); i++) {
                Attribute column = (Attribute) columns.next();
                if (key.references().contains(column)) {
                    known.put(column.exprId(), new Literal(row.get(i, column.dataType()), column.dataType()));
                }
            }
            Object value = replaced(key, known).eval(org.apache.spark.sql.catalyst.InternalRow$.MODULE$.empty());
            // NULL equals nothing.
            if (value != null) values.add(value);
        }
        if (values.isEmpty()) return;
        ListBuffer list = new ListBuffer();
        java.util.Iterator one = values.iterator();
        while (one.hasNext()) list.addOne(new Literal(one.next(), key.dataType()));
        found.add(new In(own, list.toSeq()));
    }

    // Return the rows that a plan selects from, if they are few and part of the query; else null.
    private static LocalRelation rowsOf(LogicalPlan plan) {
        while (plan instanceof Project || plan instanceof Filter || plan instanceof Aggregate || plan instanceof Sort
            || plan instanceof LocalLimit || plan instanceof GlobalLimit) {
            plan = (LogicalPlan) plan.children().head();
        }
        if (!(plan instanceof LocalRelation) || ((LocalRelation) plan).data().size() > MOST_KEYS) return null;
        return (LocalRelation) plan;
    }

    private static boolean hasRead(LogicalPlan plan) {
        if (plan instanceof MapInArrow) return readOf((MapInArrow) plan) != null;
        Iterator each = plan.children().iterator();
        while (each.hasNext()) {
            if (hasRead((LogicalPlan) each.next())) return true;
        }
        return false;
    }

    private static boolean isDeterministic(LogicalPlan plan) {
        Iterator each = plan.expressions().iterator();
        while (each.hasNext()) {
            if (!((Expression) each.next()).deterministic()) return false;
        }
        return true;
    }

    private LogicalPlan aggregated(Aggregate node) {
        if (!isOn()) return null;
        LogicalPlan child = node.child();
        List conjuncts = new ArrayList();
        List projects = new ArrayList();
        while (child instanceof Project || child instanceof Filter) {
            if (child instanceof Project) {
                projects.add(child);
            } else {
                split(((Filter) child).condition(), conjuncts);
            }
            child = (LogicalPlan) child.children().head();
        }
        if (!(child instanceof MapInArrow)) return null;
        Metadata read = readOf((MapInArrow) child);
        if (read == null) return null;
        // Conditions were split above the projects below them.
        for (int i = 0; i < conjuncts.size(); i++) conjuncts.set(i, inlined((Expression) conjuncts.get(i), projects, 0));
        Map request = request("aggregate", read);
        if (!texts(conjuncts, child.output(), request)) return null;
        List groups = new ArrayList();
        List aggregates = new ArrayList();
        Iterator each = node.groupingExpressions().iterator();
        while (each.hasNext()) {
            Expression group = inlined((Expression) each.next(), projects, 0);
            String text = hasModeOfSession(group) ? text(group, child.output()) : null;
            if (text == null) return null;
            groups.add(text);
        }
        each = node.aggregateExpressions().iterator();
        while (each.hasNext()) {
            NamedExpression named = (NamedExpression) each.next();
            Expression bare = (Expression) named;
            if (bare instanceof Alias) bare = ((Alias) bare).child();
            bare = inlined(bare, projects, 0);
            String text = hasModeOfSession(bare) ? text(bare, child.output()) : null;
            if (text == null) return null;
            Map one = new LinkedHashMap();
            one.put("sql", text);
            one.put("type", ((Expression) named).dataType().json());
            aggregates.add(one);
        }
        request.put("groups", groups);
        request.put("aggregates", aggregates);
        Object found = asked(request);
        return found == null ? null : under((LogicalPlan) found, node.output(), null);
    }

    // Return a plan whose columns have the names and ids of others; `otherwise` if types differ.
    private LogicalPlan under(LogicalPlan plan, scala.collection.Seq columns, LogicalPlan otherwise) {
        ListBuffer named = new ListBuffer();
        Iterator from = plan.output().iterator();
        Iterator to = columns.iterator();
        while (to.hasNext()) {
            Attribute column = (Attribute) to.next();
            if (!from.hasNext()) return otherwise;
            Attribute source = (Attribute) from.next();
            if (!column.dataType().equals(source.dataType())) return otherwise;
            named.addOne(new Alias(source, column.name(), column.exprId(), column.qualifier(),
                scala.Option.empty(), scala.collection.immutable.Nil$.MODULE$));
        }
        return new Project(named.toSeq(), plan);
    }

    private static Metadata readOf(MapInArrow node) {
        Iterator each = node.child().output().iterator();
        while (each.hasNext()) {
            Metadata metadata = ((Attribute) each.next()).metadata();
            if (metadata.contains(KEY)) return metadata;
        }
        return null;
    }

    // ---- statements that are refused -------------------------------------------------------------

    // Return the error of a statement that creates a table of icechunk, changes rows of a read, or has
    // credentials as options of a view; else null.
    private String refused(LogicalPlan plan) {
        String statement = plan.getClass().getSimpleName();
        if (plan instanceof DeleteFromTable || plan instanceof UpdateTable || plan instanceof MergeIntoTable) {
            return hasRead((LogicalPlan) plan.children().head()) ? refusedChange : null;
        }
        if (plan instanceof CreateTempViewUsing) {
            CreateTempViewUsing view = (CreateTempViewUsing) plan;
            return isOurs(view.provider()) && hasSecret(view.options()) ? refusedSecret : null;
        }
        boolean isTable = statement.startsWith("CreateTable") || statement.startsWith("ReplaceTable");
        // A table AS SELECT is written at once, so that its error is that of the write.
        return isTable && !statement.endsWith("AsSelect") && hasProvider(plan) ? refusedTable : null;
    }

    private boolean hasSecret(scala.collection.Map options) {
        Iterator each = options.iterator();
        while (each.hasNext()) {
            scala.Tuple2 option = (scala.Tuple2) each.next();
            if (secret.matcher(((String) option._1()).toLowerCase()).matches()) return true;
        }
        return false;
    }

    private static boolean hasProvider(LogicalPlan plan) {
        Iterator each = ((scala.Product) plan).productIterator();
        while (each.hasNext()) {
            Object one = each.next();
            if (one instanceof TableSpecBase) one = ((TableSpecBase) one).provider();
            if (one instanceof scala.Some && isOurs(((scala.Some) one).get())) return true;
        }
        return false;
    }

    private static boolean isOurs(Object name) {
        return name instanceof String && ((String) name).equalsIgnoreCase("icechunk");
    }

    // ---- expressions -----------------------------------------------------------------------------

    private static void split(Expression condition, List found) {
        if (condition instanceof And) {
            split(((And) condition).left(), found);
            split(((And) condition).right(), found);
        } else {
            found.add(condition);
        }
    }

    // Put the texts of conditions into a request; return true if it holds all of them.
    private boolean texts(List conjuncts, scala.collection.Seq output, Map request) {
        List texts = new ArrayList();
        List left = new ArrayList();
        for (int i = 0; i < conjuncts.size(); i++) {
            Expression one = (Expression) conjuncts.get(i);
            // A generator's numbers depend on the rows that reach it.
            if (!one.deterministic()) { left.add("a condition that is not deterministic, and those after it"); break; }
            String text = text(one, output);
            if (text != null) texts.add(text); else left.add(one.getClass().getSimpleName());
        }
        request.put("conjuncts", texts);
        request.put("left", left);
        return left.isEmpty();
    }

    // Return an expression with the columns of projects replaced by what they are computed from.
    private static Expression inlined(Expression expression, List projects, int from) {
        for (int i = from; i < projects.size(); i++) {
            Map known = new HashMap();
            Iterator each = ((Project) projects.get(i)).projectList().iterator();
            while (each.hasNext()) {
                Object one = each.next();
                if (one instanceof Alias) known.put(((Alias) one).exprId(), ((Alias) one).child());
            }
            if (!known.isEmpty()) expression = replaced(expression, known);
        }
        return expression;
    }

    private static Expression replaced(Expression expression, Map known) {
        if (expression instanceof AttributeReference) {
            Object other = known.get(((AttributeReference) expression).exprId());
            return other == null ? expression : (Expression) other;
        }
        ListBuffer children = new ListBuffer();
        Iterator each = expression.children().iterator();
        boolean changed = false;
        while (each.hasNext()) {
            Expression child = (Expression) each.next();
            Expression other = replaced(child, known);
            changed = changed || other != child;
            children.addOne(other);
        }
        return changed ? (Expression) expression.withNewChildren(children.toSeq()) : expression;
    }

    // Return the SQL of an expression, or null if the text would mean something else.
    private String text(Expression expression, scala.collection.Seq output) {
        Map positions = new HashMap();
        Iterator each = output.iterator();
        for (int position = 0; each.hasNext(); position++) positions.put(((Attribute) each.next()).exprId(), new Integer(position));
        Expression plain = plain(expression, positions, zone());
        return plain == null ? null : plain.sql();
    }

    private Expression plain(Expression expression, Map positions, String zone) {
        if (expression.resolved() && isCollated(expression.dataType())) return null;
        if (expression instanceof AttributeReference) {
            AttributeReference column = (AttributeReference) expression;
            Object position = positions.get(column.exprId());
            if (position == null) return null;
            return new AttributeReference(token + position, column.dataType(), true, Metadata.empty(),
                column.exprId(), (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$);
        }
        if (expression instanceof Literal) return literal((Literal) expression);
        if (!expression.deterministic() || expression instanceof SubqueryExpression) return null;
        if (expression instanceof KnownFloatingPointNormalized || expression instanceof NormalizeNaNAndZero) {
            return plain((Expression) expression.children().head(), positions, zone);
        }
        if (expression instanceof TimeZoneAwareExpression) {
            // SQL does not say the zone of an expression, which is that of its analysis.
            scala.Option own = ((TimeZoneAwareExpression) expression).timeZoneId();
            if (own.isDefined() && !own.get().equals(zone)) return null;
        }
        if (expression instanceof InSet) {
            InSet in = (InSet) expression;
            Expression child = plain(in.child(), positions, zone);
            if (child == null) return null;
            ListBuffer values = new ListBuffer();
            Iterator each = in.hset().iterator();
            while (each.hasNext()) values.addOne(literal(new Literal(each.next(), in.child().dataType())));
            return new In(child, values.toSeq());
        }
        ListBuffer children = new ListBuffer();
        Iterator each = expression.children().iterator();
        boolean changed = false;
        while (each.hasNext()) {
            Expression child = (Expression) each.next();
            Expression other = plain(child, positions, zone);
            if (other == null) return null;
            changed = changed || other != child;
            children.addOne(other);
        }
        return changed ? (Expression) expression.withNewChildren(children.toSeq()) : expression;
    }

    // SQL does not say whether an expression fails as in ANSI mode: a view keeps the mode of its creation.
    private static boolean hasModeOfSession(Expression expression) {
        boolean isCast = expression instanceof Cast;
        if (!isCast || !Cast.canUpCast(((Cast) expression).child().dataType(), expression.dataType())) {
            Object mode = property(expression, "evalMode");
            Object context = mode == null ? property(expression, "evalContext") : null;
            if (context != null) mode = property(context, "evalMode");
            if (mode == null) mode = property(expression, "failOnError");
            if (mode == null) mode = property(expression, "ansiEnabled");
            String name = String.valueOf(mode);
            boolean isKnown = name.equals("ANSI") || name.equals("true") || name.equals("LEGACY") || name.equals("false");
            if (isKnown && SQLConf.get().ansiEnabled() != (name.equals("ANSI") || name.equals("true"))) return false;
        }
        Iterator each = expression.children().iterator();
        while (each.hasNext()) if (!hasModeOfSession((Expression) each.next())) return false;
        return true;
    }

    // Return the value of a method that only some classes, and some versions, have; null elsewhere.
    private static Object property(Object owner, String name) {
        try {
            return owner.getClass().getMethod(name, new Class[0]).invoke(owner, new Object[0]);
        } catch (NoSuchMethodException missing) {
            return null;
        } catch (ReflectiveOperationException failure) {
            throw new IllegalStateException(failure);
        }
    }

    // Strings that compare by letters, not by bytes.
    private static boolean isCollated(DataType type) {
        return type instanceof StringType && !type.equals(StringType$.MODULE$);
    }

    // Instants are written in UTC: local times are ambiguous when clocks are set back.
    private static Expression literal(Literal literal) {
        if (!(literal.dataType() instanceof TimestampType) || literal.value() == null) return literal;
        long micros = ((Long) literal.value()).longValue();
        java.time.Instant instant = java.time.Instant.ofEpochSecond(
            Math.floorDiv(micros, 1000000L), Math.floorMod(micros, 1000000L) * 1000L);
        Literal text = new Literal(UTF8String.fromString(instant.toString()), StringType$.MODULE$);
        return new Cast(text, TimestampType$.MODULE$, scala.Option.apply("UTC"), EvalMode$.MODULE$.ANSI());
    }

    // ---- Python ----------------------------------------------------------------------------------

    private Map request(String kind, Metadata read) {
        Map request = new LinkedHashMap();
        request.put("kind", kind);
        request.put("id", read.getString(KEY));
        request.put("zone", zone());
        request.put("ansi", Boolean.valueOf(SQLConf.get().ansiEnabled()));
        request.put("query", new Long(query()));
        return request;
    }

    private Object asked(Map request) {
        try {
            return planner.apply(json.writeValueAsString(request));
        } catch (Throwable failure) {
            warn(failure);
            return null;
        }
    }

    // The number of the query that is optimized in this thread, the same for its subqueries.
    private long query() {
        scala.Option tracker = QueryPlanningTracker.get();
        synchronized (queries) {
            Object known = tracker.isDefined() ? queries.get(tracker.get()) : null;
            if (known != null) return ((Long) known).longValue();
            lastQuery++;
            if (tracker.isDefined()) queries.put(tracker.get(), new Long(lastQuery));
            return lastQuery;
        }
    }

    private static boolean isOn() {
        return !"false".equalsIgnoreCase(SQLConf.get().getConfString("icechunk.pushdown", "true").trim());
    }

    private static String zone() {
        return SQLConf.get().sessionLocalTimeZone();
    }

    private void warn(Throwable failure) {
        if (warned) return;
        warned = true;
        org.slf4j.LoggerFactory.getLogger("icechunk.Pushdown").warn(
            "icechunk: conditions and columns of queries are not passed to reads, which read all rows: " + failure.getClass().getName());
    }
}
