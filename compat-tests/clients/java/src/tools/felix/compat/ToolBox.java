package felix.compat;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.utils.internals.Exit;

/** Runs Kafka's tools by their main classes inside this JVM: output captured, their call of exit turned into an exception. */
final class ToolBox {
    /** What a tool printed and the code it ended with. */
    record Output(String tool, String out, String err, int code) {
        /** Both streams. */
        String all() {
            return out + err;
        }

        Output ok() {
            Program.check(code == 0, tool + " ended with " + code + ": " + all());
            return this;
        }

        Output has(String... parts) {
            for (String part : parts) {
                Program.check(all().contains(part), tool + " does not say '" + part + "': " + all());
            }
            return this;
        }

        Output lacks(String... parts) {
            for (String part : parts) {
                Program.check(!all().contains(part), tool + " says '" + part + "': " + all());
            }
            return this;
        }

        /** The first line that holds all these parts, with runs of blanks made one. */
        String line(String... parts) {
            for (String line : all().split("\n")) {
                if (Arrays.stream(parts).allMatch(line::contains)) {
                    return line.trim().replaceAll("\\s+", " ");
                }
            }
            throw new AssertionError(tool + " has no line with " + Arrays.toString(parts) + ": " + all());
        }
    }

    /** Carries a tool's exit out of it; an Error so that no tool takes it for a failure of its own. */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** The code of the first exit that the running tool called: some catch what the call throws and exit once more. */
    private final AtomicReference<Integer> exited = new AtomicReference<>();
    /** What the running tool wants done at the end of its JVM, which is the end of the tool here. */
    private final List<Runnable> hooks = new CopyOnWriteArrayList<>();

    ToolBox() {
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
    }

    private void exit(int code) {
        exited.compareAndSet(null, code);
        throw new Exited();
    }

    /** Runs a tool with this text as its standard input. */
    Output run(String mainClass, String input, String... args) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        InputStream oldIn = System.in;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        exited.set(null);
        hooks.clear();
        Throwable[] failure = {null};
        Thread thread = new Thread(() -> {
            try {
                Class.forName(mainClass).getMethod("main", String[].class).invoke(null, (Object) args);
            } catch (InvocationTargetException wrapped) {
                failure[0] = wrapped.getCause() instanceof Exited ? null : wrapped.getCause();
            } catch (Throwable other) {
                failure[0] = other;
            }
            hooks.forEach(Runnable::run);
        }, "tool");
        thread.setDaemon(true);
        try {
            thread.start();
            thread.join(25_000);
        } finally {
            System.setOut(oldOut);
            System.setErr(oldErr);
            System.setIn(oldIn);
        }
        String tool = mainClass.substring(mainClass.lastIndexOf('.') + 1) + " " + String.join(" ", args);
        String printed = out.toString(StandardCharsets.UTF_8);
        String said = err.toString(StandardCharsets.UTF_8);
        System.err.println("== " + tool + "\n" + printed + said);
        if (thread.isAlive()) {
            thread.interrupt();
            throw new AssertionError(tool + " does not come to an end: " + printed + said);
        }
        if (failure[0] != null) {
            throw new AssertionError(tool + " failed: " + failure[0] + printed + said, failure[0]);
        }
        Integer code = exited.get();
        return new Output(tool, printed, said, code == null ? 0 : code);
    }

    /** Runs a tool in a JVM of its own: for those that print in a hook of the JVM's end. */
    Output runAlone(String mainClass, String... args) throws Exception {
        List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(),
            "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.configurationFile=" + System.getProperty("log4j2.configurationFile"),
            "-cp", System.getProperty("java.class.path"), mainClass));
        command.addAll(List.of(args));
        String tool = mainClass.substring(mainClass.lastIndexOf('.') + 1) + " " + String.join(" ", args);
        Path printed = Files.createTempFile("tool", ".out");
        Process process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(printed.toFile()).start();
        boolean ended = process.waitFor(25, TimeUnit.SECONDS);
        if (!ended) {
            process.destroyForcibly();
        }
        String out = Files.readString(printed);
        Files.delete(printed);
        System.err.println("== " + tool + "\n" + out);
        Program.check(ended, tool + " does not come to an end: " + out);
        return new Output(tool, out, "", process.exitValue());
    }
}
