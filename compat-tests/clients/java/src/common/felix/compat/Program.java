package felix.compat;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The harness's protocol: arguments, result lines, and asking for the broker to be restarted. */
public final class Program {
    /** One case; returns normally when it passed. */
    public interface Case {
        void run() throws Exception;
    }

    /** Thrown by a case that does not apply. */
    public static final class Skip extends RuntimeException {
        public Skip(String reason) {
            super(reason);
        }
    }

    public final String bootstrap;
    public final String prefix;
    public final boolean full = System.getenv("FELIX_FULL") != null;
    private final List<String> wanted = new ArrayList<>();
    private final Map<String, Case> cases = new LinkedHashMap<>();
    /** The process's real stdout: tools that run in this JVM get another one. */
    private final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    public Program(String[] args) {
        String bootstrap = null;
        String prefix = "";
        for (int i = 0; i < args.length; i++) {
            switch (args[i]) {
                case "--bootstrap" -> bootstrap = args[++i];
                case "--prefix" -> prefix = args[++i];
                default -> wanted.add(args[i]);
            }
        }
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    public void add(String name, Case body) {
        cases.put(name, body);
    }

    public void version(String version) {
        out.println("{\"version\": " + quote(version) + "}");
    }

    /** Runs the wanted cases in order and ends the JVM. */
    public void runAll() {
        for (String name : wanted) {
            Case body = cases.get(name);
            out.println("{\"begin\": " + quote(name) + "}");
            long start = System.nanoTime();
            String status = "pass";
            String detail = "";
            try {
                if (body == null) {
                    throw new Skip("not written");
                }
                body.run();
            } catch (Skip skip) {
                status = "skip";
                detail = skip.getMessage();
            } catch (Throwable failure) {
                status = "fail";
                detail = explain(failure);
                failure.printStackTrace();
            }
            long ms = (System.nanoTime() - start) / 1_000_000;
            out.println("{\"case\": " + quote(name) + ", \"status\": " + quote(status) + ", \"detail\": " + quote(detail)
                + ", \"ms\": " + ms + "}");
        }
        Runtime.getRuntime().halt(0);
    }

    private static String explain(Throwable failure) {
        StringBuilder text = new StringBuilder();
        for (Throwable t = failure; t != null; t = t.getCause()) {
            text.append(text.length() == 0 ? "" : "; cause: ").append(t instanceof AssertionError ? "" : t.getClass().getSimpleName() + ": ")
                .append(t.getMessage());
        }
        StackTraceElement[] stack = failure.getStackTrace();
        for (StackTraceElement frame : stack) {
            if (frame.getClassName().startsWith("felix.compat") && !frame.getMethodName().startsWith("check")) {
                text.append(" (").append(frame.getFileName()).append(':').append(frame.getLineNumber()).append(')');
                break;
            }
        }
        return text.toString();
    }

    /** Asks the harness for restart, kill, stop or start, and waits until it is done. */
    public void ask(String what) throws Exception {
        inquire(what);
    }

    /** The same; the line with the harness's answer. */
    public synchronized String inquire(String what) throws Exception {
        out.println("{\"ask\": " + quote(what) + "}");
        String answer = in.readLine();
        if (answer == null || !answer.contains("\"ok\":true")) {
            throw new AssertionError("the harness could not " + what + ": " + answer);
        }
        return answer;
    }

    /** A text of the harness's answer; there is nothing in it that needs to be unescaped. */
    public static String field(String answer, String name) {
        Matcher found = Pattern.compile(quote(name) + ":\"([^\"]*)\"").matcher(answer);
        check(found.find(), "no " + name + " in " + answer);
        return found.group(1);
    }

    public static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    public static void checkEquals(Object expected, Object actual, String what) {
        if (!java.util.Objects.equals(expected, actual)) {
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
        }
    }

    /** Waits for a condition, at most so many seconds. */
    public static void await(String what, int seconds, BooleanSupplier condition) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (!condition.getAsBoolean()) {
            check(System.nanoTime() < deadline, what + ": not within " + seconds + " s");
            Thread.sleep(10);
        }
    }

    static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : String.valueOf(text).toCharArray()) {
            switch (c) {
                case '"' -> quoted.append("\\\"");
                case '\\' -> quoted.append("\\\\");
                case '\n' -> quoted.append("\\n");
                default -> {
                    if (c < 0x20) {
                        quoted.append(String.format("\\u%04x", (int) c));
                    } else {
                        quoted.append(c);
                    }
                }
            }
        }
        return quoted.append('"').toString();
    }
}
